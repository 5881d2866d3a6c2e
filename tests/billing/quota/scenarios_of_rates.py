"""Directed stories of rates and concurrency: each fails if its rule is left out."""

from __future__ import annotations

from billing.quota.lease import TERM_S
from billing.quota.model import Denied, LeaseReport, Sync
from tests.billing.quota.moves import need_of
from tests.billing.quota.parts import BOUND_S, CONCURRENT, RATE, RATED, RENEW_S, Process, Rules
from tests.billing.quota.scenarios import A, Story, converse, hear, pair
from tests.billing.quota.twin import MICROS
from tests.billing.quota.world import World

C = RATE.burst
PER_S = RATE.per_minute // 60


def rated(world: World, process: Process, amount: int) -> int:
    """A request that holds this much of the rate, asked for and granted."""
    request = world.ask(process, [need_of(RATED, amount)])
    converse(world, process)
    assert request in process.holds, "it is there"
    return request


def refusal(world: World, request: int) -> Denied:
    outcome = world.outcomes.get(request)
    assert isinstance(outcome, Denied), "it was not there"
    return outcome


def a_bucket_fills_only_where_nothing_is_lent(rules: Rules) -> None:
    """Report before refill: what was out until now left no room, however long that was."""
    world, first, second = pair(rules, 0)
    request = rated(world, first, C)
    world.now = 4.0
    world.settle(first, request, {RATED: C})
    converse(world, first)
    world.check()
    assert world.twin.allowances[RATED].level == 0
    world.now = 4.5
    taken = rated(world, second, PER_S // 2)
    world.settle(second, taken, {RATED: PER_S // 2})
    world.check()


def a_rate_refills_all_the_time_and_up_to_its_burst(rules: Rules) -> None:
    world, first, _ = pair(rules, 0)
    world.settle(first, rated(world, first, C), {RATED: C})
    converse_at(world, first, RENEW_S)
    world.now = RENEW_S + 1.5
    world.turn()
    assert world.twin.available(RATED) == 3
    world.now += 60
    world.turn()
    assert world.twin.available(RATED) == C
    world.check()


def no_time_is_lost_between_two_looks(rules: Rules) -> None:
    """A rate of one a minute gives one after a minute, however often it was looked at."""
    world, first, _ = pair(rules, 0)
    own = world.twin.allowances[RATED]
    world.settle(first, rated(world, first, C), {RATED: C})
    converse_at(world, first, RENEW_S)
    for look in range(1, 301):
        world.now = RENEW_S + look / 300 * 0.5
        world.turn()
    assert own.level == PER_S * MICROS // 2


def a_doubled_message_counts_what_was_consumed_once(rules: Rules) -> None:
    world, first, _ = pair(rules, 0)
    world.settle(first, rated(world, first, 6), {RATED: 4})
    converse_at(world, first, RENEW_S)
    for process, message in list(world.messages) * 2:
        world.deliver(process, message)
        world.check()
    row = world.twin.row(RATED, first.id)
    assert (row.granted, row.settled) == (first.leases.lease(RATED).granted, 4)


def what_is_consumed_is_reported_within_the_renewal_time(rules: Rules) -> None:
    """Also while the request runs, and though nothing is wanted."""
    world, first, _ = pair(rules, 0)
    request = rated(world, first, 6)
    world.consume(first, request, 2)
    converse_at(world, first, RENEW_S)
    assert world.twin.row(RATED, first.id).settled == 2
    world.consume(first, request, 5)
    converse_at(world, first, 2 * RENEW_S)
    assert world.twin.row(RATED, first.id).settled == 5
    world.check()


def what_a_request_did_not_consume_is_free(rules: Rules) -> None:
    world, first, _ = pair(rules, 0)
    request = rated(world, first, 8)
    world.consume(first, request, 3)
    world.settle(first, request, {})
    lease = first.leases.lease(RATED)
    assert (lease.held, lease.covered) == (0, 3)
    assert world.admit(first, [need_of(RATED, 5)])
    world.check()


def a_request_that_was_never_admitted_consumed_nothing(rules: Rules) -> None:
    world, first, _ = pair(rules, 0)
    hold = first.holds.pop(rated(world, first, 8))
    first.leases.withdraw(hold)
    assert (first.leases.lease(RATED).held, first.leases.lease(RATED).free) == (0, 8)


def idle_tokens_of_a_rate_go_back_after_a_second(rules: Rules) -> None:
    world, first, _ = pair(rules, 0)
    world.settle(first, rated(world, first, 8), {RATED: 0})
    world.run_fairly(1.0 + 2 * RENEW_S)
    assert world.twin.outstanding(RATED) == 0
    assert world.twin.available(RATED) == C
    world.check()


def what_a_dead_process_did_not_report_counts_as_consumed(rules: Rules) -> None:
    world, first, second = pair(rules, 0)
    request = rated(world, first, C)
    world.consume(first, request, C)
    world.die(first, journal_ends=2)
    world.now = 0.5
    world.close(first, lambda n: n - 1)
    world.check()
    assert world.twin.available(RATED) == 0
    world.now = 1.0
    rated(world, second, PER_S // 2)


def an_exhausted_rate_refuses_at_once_and_says_how_long_it_takes_to_fill(rules: Rules) -> None:
    world, first, second = pair(rules, 0)
    world.settle(first, rated(world, first, C), {RATED: C})
    converse_at(world, first, RENEW_S)
    world.now = RENEW_S + 0.25
    world.notices.clear()
    request = world.ask(second, [need_of(RATED, 4)])
    converse(world, second)
    refused = refusal(world, request)
    assert (refused.limit, refused.available) == (RATE.per_minute, 0)
    assert refused.retry_after_s == 3.5 / PER_S
    assert not world.notices
    assert not world.twin.renewal_waits(RATED)
    world.now += refused.retry_after_s
    rated(world, second, 4)
    world.check()


def what_others_have_of_a_rate_is_recalled(rules: Rules) -> None:
    world, rich, poor = pair(rules, 0)
    world.settle(rich, rated(world, rich, 8), {RATED: 0})
    request = world.ask(poor, [need_of(RATED, C)])
    converse(world, poor)
    hear(world, rich)
    converse(world, rich)
    hear(world, poor)
    converse(world, poor)
    assert request in poor.holds
    world.check()


def what_holders_still_use_of_a_rate_is_waited_for_one_bound(rules: Rules) -> None:
    world, rich, poor = pair(rules, 0)
    rated(world, rich, 8)
    request = world.ask(poor, [need_of(RATED, 6)])
    world.run_fairly(world.now + 1, done=lambda: request in world.outcomes)
    retry = refusal(world, request).retry_after_s
    assert retry is not None
    assert BOUND_S <= world.now < 2 * BOUND_S
    assert retry * PER_S + world.twin.allowances[RATED].level / MICROS >= 6 - 1e-9


def more_than_a_rate_ever_holds_is_refused_without_a_message(rules: Rules) -> None:
    world, first, _ = pair(rules, 0)
    refused = refusal(world, world.ask(first, [need_of(RATED, C + 1)]))
    assert (refused.limit, refused.available, refused.retry_after_s) == (RATE.per_minute, C, None)
    assert not world.messages


def a_released_machine_may_use_its_rate_until_its_lease_ends(rules: Rules) -> None:
    world, first, second = pair(rules, 0)
    world.settle(first, rated(world, first, C), {RATED: 0})
    world.release(first)
    world.now = TERM_S - 1
    assert world.admit(first, [need_of(RATED, C)])
    world.settle(first, world.requests, {RATED: C})
    world.now = TERM_S + 1.5
    rated(world, second, 1)
    world.check()
    refusal_of_more = world.ask(second, [need_of(RATED, 2)])
    converse(world, second)
    assert isinstance(world.outcomes.get(refusal_of_more), Denied)


def a_clock_that_steps_back_fills_nothing_twice(rules: Rules) -> None:
    world, first, _ = pair(rules, 0)
    world.settle(first, rated(world, first, C), {RATED: C})
    converse_at(world, first, RENEW_S)
    level = world.twin.allowances[RATED].level
    for now in (3.0, 1.0, 3.0):
        world.now = now
        world.turn()
    assert world.twin.allowances[RATED].level == level + round((3.0 - RENEW_S) * PER_S * MICROS)


def one_process_at_steady_demand_gets_the_whole_rate(rules: Rules) -> None:
    """R4: admitted ≥ ρ·t − C."""
    world, first, _ = pair(rules, 0)
    admitted, seconds = 0, 30
    for tick in range(seconds * 10):
        world.now = tick / 10
        if tick % (10 // PER_S) == 0:
            request = world.requests + 1
            if not world.admit(first, [need_of(RATED, 1)]):
                request = world.ask(first, [need_of(RATED, 1)])
            world.run_fairly(world.now + 0.05, done=lambda r=request: r in first.holds)  # type: ignore[misc]
            if request in first.holds:
                world.settle(first, request, {RATED: 1})
                admitted += 1
        world.run_fairly(world.now + 0.05)
    assert admitted >= seconds * PER_S - C
    world.check()


def concurrency_is_returned_and_never_spent(rules: Rules) -> None:
    world, first, second = pair(rules, 0)
    running = [world.ask(first, [need_of(CONCURRENT, 1)]) for _ in range(4)]
    converse(world, first)
    waiting = world.ask(second, [need_of(CONCURRENT, 1)])
    world.run_fairly(world.now + 0.01)
    assert waiting not in world.outcomes
    world.settle(first, running[0], {CONCURRENT: 0})
    first.flush(len(first.journal))
    world.post(first, len(first.journal))
    world.run_fairly(world.now + 0.01, done=lambda: waiting in world.outcomes)
    assert waiting in second.holds
    assert world.twin.allowances[CONCURRENT].spent == 0
    world.check()


def all_kinds_are_admitted_together_or_none(rules: Rules) -> None:
    world, first, _ = pair(rules, 9, 9)
    needs = [need_of(CONCURRENT, 1), need_of(RATED, C)]
    request = world.ask(first, needs)
    converse(world, first)
    assert request in first.holds
    refused = world.ask(first, needs)
    world.run_fairly(world.now + 1, done=lambda: refused in world.outcomes)
    assert refusal(world, refused).allowance_id == RATED
    lease = first.leases.lease(CONCURRENT)
    assert lease.held == 1
    world.check()


def what_a_process_forgot_it_learns_anew(rules: Rules) -> None:
    """Nothing is out, so it keeps no memory; the next grant alone is free, whatever was there before."""
    world, first, _ = pair(rules, 30)
    request = world.ask(first, [need_of(RATED, 8), need_of(A, 8)])
    converse(world, first)
    world.settle(first, request, {RATED: 3, A: 3})
    first.flush(len(first.journal))
    world.run_fairly(world.now + 2.5)
    assert len(first.leases) == 1, "what is settled and not posted is remembered"
    world.post(first, len(first.journal))
    world.run_fairly(world.now + 5)
    assert len(first.leases) == 0
    assert first.exchange.next_wake() is None
    request = world.ask(first, [need_of(A, 2), need_of(RATED, 2)])
    converse(world, first)
    assert request in first.holds
    world.check()


def a_message_of_old_that_names_a_rate_keeps_no_lease_alive(rules: Rules) -> None:
    world, first, second = pair(rules, 0)
    rated(world, first, C)
    old = world.messages[-1]
    world.die(first, journal_ends=1)
    for now in (2.0, 4.0, 5.9):
        world.now = now
        world.deliver(*old)
        world.deliver(first, Sync(1, (LeaseReport(RATED, 0, 0, 0, 1),), ()))
    world.now = TERM_S + 1.5
    rated(world, second, 1)
    world.check()


def converse_at(world: World, process: Process, now: float) -> None:
    world.now = now
    converse(world, process)


STORIES_OF_RATES: tuple[Story, ...] = (
    a_bucket_fills_only_where_nothing_is_lent,
    a_rate_refills_all_the_time_and_up_to_its_burst,
    no_time_is_lost_between_two_looks,
    a_doubled_message_counts_what_was_consumed_once,
    what_is_consumed_is_reported_within_the_renewal_time,
    what_a_request_did_not_consume_is_free,
    a_request_that_was_never_admitted_consumed_nothing,
    idle_tokens_of_a_rate_go_back_after_a_second,
    what_a_dead_process_did_not_report_counts_as_consumed,
    an_exhausted_rate_refuses_at_once_and_says_how_long_it_takes_to_fill,
    what_others_have_of_a_rate_is_recalled,
    what_holders_still_use_of_a_rate_is_waited_for_one_bound,
    more_than_a_rate_ever_holds_is_refused_without_a_message,
    a_released_machine_may_use_its_rate_until_its_lease_ends,
    a_clock_that_steps_back_fills_nothing_twice,
    one_process_at_steady_demand_gets_the_whole_rate,
    concurrency_is_returned_and_never_spent,
    all_kinds_are_admitted_together_or_none,
    what_a_process_forgot_it_learns_anew,
    a_message_of_old_that_names_a_rate_keeps_no_lease_alive,
)
