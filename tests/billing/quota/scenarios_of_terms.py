"""Directed stories of leases that end by time: each fails if its rule is left out."""

from __future__ import annotations

from billing.quota.lease import SILENCE_S, TERM_S, Hold
from billing.quota.model import Denied
from tests.billing.quota.moves import need_of
from tests.billing.quota.parts import RATED, RENEW_S, Rules
from tests.billing.quota.scenarios import Story, converse, pair
from tests.billing.quota.scenarios_of_rates import PER_S, C, converse_at, rated, refusal


def a_lost_machine_that_has_it_all_stops_nobody_for_long(rules: Rules) -> None:
    """Its lease ends by time: it counts as consumed, and the bucket fills."""
    world, lost, second = pair(rules, 0)
    rated(world, lost, C)
    lost.exchange.fail(now=world.now)
    world.now = TERM_S + 1 + 2.0
    request = world.ask(second, [need_of(RATED, 4)])
    converse(world, second)
    assert isinstance(world.outcomes.get(request), Hold), "two seconds after its end there are four"
    world.check()


def what_a_lease_had_when_it_ended_was_consumed(rules: Rules) -> None:
    world, lost, second = pair(rules, 0)
    rated(world, lost, 4)
    lost.exchange.fail(now=world.now)
    world.now = TERM_S + 0.5
    world.settle(second, rated(world, second, 4), {RATED: 4})
    converse_at(world, second, TERM_S + 0.8)
    world.now = TERM_S + 1.1
    request = world.ask(second, [need_of(RATED, 3)])
    converse(world, second)
    assert isinstance(world.outcomes.get(request), Denied), "nothing of it came back"
    world.check()


def a_process_cut_off_uses_a_rate_no_longer_than_its_lease(rules: Rules) -> None:
    world, first, second = pair(rules, 0)
    world.settle(first, rated(world, first, 8), {RATED: 0})
    first.exchange.fail(now=0.0)
    world.now = TERM_S - 0.01
    assert world.admit(first, [need_of(RATED, 4)])
    world.now = TERM_S
    assert not world.admit(first, [need_of(RATED, 4)]), "at its end, with no timer run"
    assert refusal(world, world.ask(first, [need_of(RATED, 4)])).cut_off
    world.now = TERM_S + 1.5
    rated(world, second, 1)
    world.check()


def a_lease_lasts_from_when_its_message_was_sent(rules: Rules) -> None:
    """Not from its answer, which may come late."""
    world, first, _ = pair(rules, 0)
    request = world.ask(first, [need_of(RATED, 8)])
    assert world.compose(first)
    world.deliver(*world.messages[-1])
    world.now = 0.9
    world.receive(*world.answers[-1])
    world.settle(first, request, {RATED: 0})
    world.now = TERM_S + 0.1
    assert not world.admit(first, [need_of(RATED, 4)])


def an_answer_that_comes_after_its_lease_has_ended_admits_nothing(rules: Rules) -> None:
    """A process that was stopped for ten seconds, with the answer waiting for it."""
    world, first, second = pair(rules, 0)
    request = world.ask(first, [need_of(RATED, C)])
    assert world.compose(first)
    world.deliver(*world.messages[-1])
    late = world.answers[-1]
    world.now = TERM_S + 5
    rated(world, second, 2 * PER_S)
    world.receive(*late)
    assert request not in first.holds
    world.check()


def a_total_of_a_lease_that_ended_does_not_touch_the_next(rules: Rules) -> None:
    world, first, _ = pair(rules, 0)
    world.settle(first, rated(world, first, 8), {RATED: 6})
    world.now = RENEW_S
    assert world.compose(first)
    old = world.messages[-1]
    world.fail(first)
    world.now = TERM_S + 2
    converse(world, first)
    rated(world, first, 3)
    world.deliver(*old)
    row = world.twin.row(RATED, first.id)
    assert (row.granted, row.settled, row.returned) == (3, 0, 0)
    world.check()


def holds_of_a_lease_that_ended_touch_nothing_of_the_next(rules: Rules) -> None:
    world, first, _ = pair(rules, 0)
    request, other = rated(world, first, 5), rated(world, first, 5)
    world.now = TERM_S + 3
    converse(world, first)
    rated(world, first, 4)
    lease = first.leases.lease(RATED)
    before = (lease.free, lease.held, lease.covered)
    world.consume(first, request, 5)
    world.settle(first, request, {RATED: 5})
    first.leases.withdraw(first.holds.pop(other))
    assert (lease.free, lease.held, lease.covered) == before
    world.check()


def a_long_stream_keeps_its_lease_though_it_says_nothing_new(rules: Rules) -> None:
    world, first, _ = pair(rules, 0)
    request = rated(world, first, C)
    world.run_fairly(3 * TERM_S)
    world.turn()
    assert world.twin.row(RATED, first.id).outstanding == C
    world.settle(first, request, {RATED: 4})
    assert world.admit(first, [need_of(RATED, 6)]), "its lease lives on"
    world.check()


def a_quiet_lease_is_named_once_a_second_and_not_more(rules: Rules) -> None:
    world, first, _ = pair(rules, 0)
    rated(world, first, C)
    world.run_fairly(2.0)
    world.messages.clear()
    world.run_fairly(2.0 + 10 * SILENCE_S)
    assert 8 <= len(world.messages) <= 10


STORIES_OF_TERMS: tuple[Story, ...] = (
    a_lost_machine_that_has_it_all_stops_nobody_for_long,
    what_a_lease_had_when_it_ended_was_consumed,
    a_process_cut_off_uses_a_rate_no_longer_than_its_lease,
    a_lease_lasts_from_when_its_message_was_sent,
    an_answer_that_comes_after_its_lease_has_ended_admits_nothing,
    a_total_of_a_lease_that_ended_does_not_touch_the_next,
    holds_of_a_lease_that_ended_touch_nothing_of_the_next,
    a_long_stream_keeps_its_lease_though_it_says_nothing_new,
    a_quiet_lease_is_named_once_a_second_and_not_more,
)
