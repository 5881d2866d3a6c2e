"""Directed stories of the protocol: each was a counterexample once, and fails if its rule is left out."""

from __future__ import annotations

from collections.abc import Callable

from billing.quota.lease import Hold
from billing.quota.model import Denied, LeaseReport, Need, Sync
from tests.billing.quota.parts import ALLOWANCES, BOUND_S, RENEW_S, Process, Rules
from tests.billing.quota.world import World

A, B = ALLOWANCES
Story = Callable[[Rules], None]


def converse(world: World, process: Process) -> None:
    """One message and its answer, notices left on their way."""
    assert world.compose(process), "there is something to say"
    world.deliver(*world.messages[-1])
    world.receive(*world.answers[-1])


def hear(world: World, process: Process) -> None:
    """The notices on their way reach one process; the others' are lost."""
    notices, world.notices = world.notices, []
    for to, allowance in notices:
        if to is process:
            process.exchange.notice(allowance, now=world.now)


def hold(world: World, process: Process, *needs: tuple[str, int]) -> int:
    """A request of the process that holds these needs."""
    request = world.ask(process, [Need(A if name == "a" else B, amount) for name, amount in needs])
    converse(world, process)
    assert request in process.holds, "it is there"
    return request


def free(world: World, process: Process, *needs: tuple[str, int]) -> None:
    """The process has these amounts free and durable, and has not renewed since."""
    request = hold(world, process, *needs)
    world.settle(process, request, {n.allowance_id: 0 for n in process.holds[request].needs})
    process.flush(len(process.journal))


def pair(rules: Rules, limit_a: int, limit_b: int = 0) -> tuple[World, Process, Process]:
    world = World(rules, (limit_a, limit_b))
    first, second = world.birth(), world.birth()
    for process in (first, second):  # a first renewal, so that what follows is only what the story says
        process.exchange._renew_at = RENEW_S
    return world, first, second


def ends_in_hold(world: World, request: int) -> None:
    assert isinstance(world.outcomes.get(request), Hold), "it was covered"
    world.check()


def an_ask_gives_back_its_own_in_the_same_message(rules: Rules) -> None:
    world, first, _ = pair(rules, 3)
    free(world, first, ("a", 2))
    request = world.ask(first, [Need(A, 3)])
    converse(world, first)
    ends_in_hold(world, request)


def two_askers_with_two_and_one_of_three_who_both_need_three(rules: Rules) -> None:
    world, first, second = pair(rules, 3)
    free(world, first, ("a", 2))
    free(world, second, ("a", 1))
    requests = [world.ask(first, [Need(A, 3)]), world.ask(second, [Need(A, 3)])]
    world.run_fairly(world.now + 1, done=lambda: all(r in world.outcomes for r in requests))
    assert sorted(isinstance(world.outcomes[r], Hold) for r in requests) == [False, True]


def two_askers_who_each_hold_one_of_two_allowances(rules: Rules) -> None:
    world, first, second = pair(rules, 3, 3)
    free(world, first, ("a", 3))
    free(world, second, ("b", 3))
    both = [Need(A, 3), Need(B, 3)]
    requests = [world.ask(first, both), world.ask(second, both)]
    world.run_fairly(world.now + 1, done=lambda: all(r in world.outcomes for r in requests))
    assert sorted(isinstance(world.outcomes[r], Hold) for r in requests) == [False, True]


def what_gets_free_under_recall_goes_back_at_once(rules: Rules) -> None:
    """Even after an answer that came between the recall and the release: recall is a state."""
    world, rich, poor = pair(rules, 3)
    held = hold(world, rich, ("a", 3))
    world.now = 0.2
    request = world.ask(poor, [Need(A, 3)])
    converse(world, poor)
    hear(world, rich)
    world.now = 1.05
    converse(world, rich)
    world.settle(rich, held, {A: 0})
    rich.flush(len(rich.journal))
    converse(world, rich)
    hear(world, poor)
    converse(world, poor)
    ends_in_hold(world, request)


def recall_reaches_a_process_whose_grant_is_still_in_flight(rules: Rules) -> None:
    world, rich, poor = pair(rules, 3)
    first = world.ask(rich, [Need(A, 3)])
    assert world.compose(rich)
    world.deliver(*world.messages[-1])
    granted = world.answers[-1]
    request = world.ask(poor, [Need(A, 3)])
    converse(world, poor)
    hear(world, rich)
    rich.exchange.asks.abandon(rich.asks[first])
    world.receive(*granted)
    converse(world, rich)
    hear(world, poor)
    converse(world, poor)
    ends_in_hold(world, request)


def an_asker_tries_again_when_something_returns(rules: Rules) -> None:
    """And not only at its deadline: no time passes here."""
    world, rich, poor = pair(rules, 3)
    free(world, rich, ("a", 3))
    request = world.ask(poor, [Need(A, 3)])
    world.run_fairly(world.now + 0.01, done=lambda: request in world.outcomes)
    ends_in_hold(world, request)


def a_raised_limit_wakes_who_waits(rules: Rules) -> None:
    world, rich, poor = pair(rules, 6)
    hold(world, rich, ("a", 3))
    request = world.ask(poor, [Need(A, 5)])
    converse(world, poor)
    world.notices.clear()
    world.twin.change_limit(A, by=2)
    world._spread_notices()
    world.run_fairly(world.now + 0.01, done=lambda: request in world.outcomes)
    ends_in_hold(world, request)


def what_is_spent_is_neither_waited_for_nor_recalled(rules: Rules) -> None:
    """A need beyond limit − spent is refused by the first answer, and costs others nothing."""
    world, rich, poor = pair(rules, 9, 9)
    world.settle(rich, hold(world, rich, ("a", 6)), {A: 6})
    world.post(rich, 2)
    hold(world, rich, ("b", 6))
    world.notices.clear()
    request = world.ask(poor, [Need(B, 4), Need(A, 4)])
    converse(world, poor)
    refusal = world.outcomes.get(request)
    assert isinstance(refusal, Denied)
    assert (refusal.allowance_id, refusal.limit, refusal.available, refusal.retry_after_s) == (A, 9, 3, None)
    assert not world.notices
    assert not any(world.twin.renewal_waits(allowance) for allowance in (A, B))


def an_asker_whose_notices_are_lost_tries_a_last_time(rules: Rules) -> None:
    world, rich, poor = pair(rules, 3)
    free(world, rich, ("a", 3))
    request = world.ask(poor, [Need(A, 3)])
    converse(world, poor)
    hear(world, rich)
    converse(world, rich)
    world.notices.clear()
    world.run_fairly(world.now + 1, done=lambda: request in world.outcomes)
    ends_in_hold(world, request)


def an_allowance_that_begins_to_lack_during_the_wait_gets_its_own_bound(rules: Rules) -> None:
    world, rich, poor = pair(rules, 3, 3)
    held = hold(world, rich, ("a", 3))
    request = world.ask(poor, [Need(A, 3), Need(B, 3)])
    converse(world, poor)
    hear(world, rich)
    free(world, rich, ("b", 3))
    world.now += BOUND_S
    world.settle(rich, held, {A: 0})
    rich.flush(len(rich.journal))
    converse(world, rich)
    world.notices.clear()
    converse(world, poor)
    assert request not in world.outcomes, "B lacks, and nobody was asked for it before"
    world.run_fairly(world.now + BOUND_S / 2, done=lambda: request in world.outcomes)
    ends_in_hold(world, request)


def what_gets_free_at_home_during_the_last_try_is_tried(rules: Rules) -> None:
    world, first, second = pair(rules, 3)
    held = hold(world, first, ("a", 2))
    request = world.ask(first, [Need(A, 3)])
    converse(world, first)
    world.now += BOUND_S
    assert world.compose(first)
    world.deliver(*world.messages[-1])
    last = world.answers[-1]
    world.settle(first, held, {A: 0})
    world.receive(*last)
    assert request not in world.outcomes, "2 got free meanwhile"
    first.flush(len(first.journal))
    world.run_fairly(world.now + 0.01, done=lambda: request in world.outcomes)
    ends_in_hold(world, request)
    assert second.alive


def a_lost_grant_is_told_of_in_a_later_answer(rules: Rules) -> None:
    world, rich, poor = pair(rules, 3)
    world.ask(rich, [Need(A, 3)])
    assert world.compose(rich)
    world.deliver(*world.messages[-1])
    world.fail(rich)
    world.run_fairly(world.now + 1)
    assert rich.leases.lease(A).granted == 3, "learnt without another request"
    request = world.ask(poor, [Need(A, 3)])
    world.run_fairly(world.now + BOUND_S, done=lambda: request in world.outcomes)
    ends_in_hold(world, request)


def a_lost_return_is_told_of_again(rules: Rules) -> None:
    world, rich, poor = pair(rules, 3)
    free(world, rich, ("a", 3))
    world.run_fairly(2.2)
    world.now = 2.3
    assert world.compose(rich)
    assert rich.leases.lease(A).free == 0, "it was idle for two seconds"
    world.fail(rich)
    world.run_fairly(world.now + 2 * RENEW_S)
    request = world.ask(poor, [Need(A, 3)])
    world.run_fairly(world.now + 0.01, done=lambda: request in world.outcomes)
    ends_in_hold(world, request)


def a_renewal_gets_nothing_under_recall(rules: Rules) -> None:
    world, first, second = pair(rules, 9)
    hold(world, first, ("a", 1))
    request = world.ask(first, [Need(A, 9)])
    converse(world, first)
    world.deliver(second, Sync(1, (LeaseReport(A, 0, 8),), ()))
    assert world.twin.row(A, second.id).granted == 0, "while someone waits"
    assert request not in world.outcomes


def below_a_lowered_limit_what_gets_free_goes_back(rules: Rules) -> None:
    """However long ago the limit was lowered."""
    world, rich, _ = pair(rules, 8)
    held = hold(world, rich, ("a", 6))
    world.twin.change_limit(A, by=-5)
    world._spread_notices()
    world.run_fairly(world.now + 2)
    world.settle(rich, held, {A: 1})
    rich.flush(len(rich.journal))
    converse(world, rich)
    assert rich.leases.lease(A).free == 0
    assert world.twin.row(A, rich.id).returned == 5


def a_process_cut_off_admits_from_what_it_has_and_asks_in_vain(rules: Rules) -> None:
    world, first, _ = pair(rules, 9)
    free(world, first, ("a", 6))
    world.now = RENEW_S
    assert world.compose(first)
    world.fail(first)
    assert world.admit(first, [Need(A, 4)])
    refusal = world.outcomes[world.ask(first, [Need(A, 4)])]
    assert isinstance(refusal, Denied)
    assert refusal.cut_off
    assert first.leases.lease(A).free == 2


def a_parked_row_is_kept_at_the_close_and_repaired_after_it(rules: Rules) -> None:
    world, first, _ = pair(rules, 9)
    held = hold(world, first, ("a", 6))
    world.settle(first, held, {A: 5})
    world.post(first, 2, park=True)
    world.die(first, journal_ends=2)
    world.close(first, lambda n: n - 1)
    world.check()
    assert world.twin.outstanding(A) == 5
    world.resolve(first, held, {A: 2})
    world.check()
    assert (world.twin.outstanding(A), world.twin.available(A)) == (0, 7)


def a_parked_row_is_repaired_to_less_while_its_process_lives(rules: Rules) -> None:
    """What it took and did not use is free for others at once, and they are told."""
    world, first, second = pair(rules, 9)
    held = hold(world, first, ("a", 6))
    world.settle(first, held, {A: 6})
    world.post(first, 2, park=True)
    request = world.ask(second, [Need(A, 7)])
    converse(world, second)
    world.notices.clear()
    world.resolve(first, held, {A: 2})
    world.check()
    world.run_fairly(world.now + 0.01, done=lambda: request in world.outcomes)
    ends_in_hold(world, request)


def after_an_operators_release_the_machine_comes_back(rules: Rules) -> None:
    """What it admitted meanwhile is unleased, no more than what was out; it learns that it is closed."""
    world, first, _ = pair(rules, 9)
    held = hold(world, first, ("a", 6))
    world.release(first)
    world.settle(first, held, {A: 4})
    world.post(first, 2)
    world.check()
    own = world.twin.allowances[A]
    assert (own.spent, own.unleased, world.twin.available(A)) == (4, 4, 5)
    world.now = RENEW_S
    converse(world, first)
    assert first.leases.closed
    assert not world.admit(first, [Need(A, 0)])


def a_sync_that_arrives_after_the_close_gives_nothing(rules: Rules) -> None:
    world, first, _ = pair(rules, 9)
    world.ask(first, [Need(A, 4)])
    assert world.compose(first)
    world.die(first, journal_ends=0)
    world.close(first, lambda n: n - 1)
    world.deliver(*world.messages[-1])
    assert world.answers[-1][1].closed
    assert world.twin.available(A) == 9


def a_power_cut_between_settled_and_its_sync(rules: Rules) -> None:
    """What the lost record freed has not been returned, so the hold that comes back is covered."""
    world, first, second = pair(rules, 9)
    held = hold(world, first, ("a", 6))
    first.flush(1)
    world.settle(first, held, {A: 1})
    world.ask(second, [Need(A, 8)])
    world.run_fairly(world.now + BOUND_S)
    world.die(first, journal_ends=1)
    world.close(first, lambda n: n - 1)
    world.check()
    assert world.twin.allowances[A].spent == 6


def a_close_keeps_no_more_than_is_out(rules: Rules) -> None:
    world, first, _ = pair(rules, 9)
    hold(world, first, ("a", 8))
    world.twin.close(first.id, {A: 12})
    assert world.twin.available(A) == 1


def a_grant_that_was_lost_with_a_commit_ends_the_incarnation(rules: Rules) -> None:
    world, first, _ = pair(rules, 9)
    hold(world, first, ("a", 4))
    world.twin.rows.clear()
    world.now = RENEW_S
    converse(world, first)
    assert first.leases.closed


STORIES: tuple[Story, ...] = (
    an_ask_gives_back_its_own_in_the_same_message,
    two_askers_with_two_and_one_of_three_who_both_need_three,
    two_askers_who_each_hold_one_of_two_allowances,
    what_gets_free_under_recall_goes_back_at_once,
    recall_reaches_a_process_whose_grant_is_still_in_flight,
    an_asker_tries_again_when_something_returns,
    a_raised_limit_wakes_who_waits,
    what_is_spent_is_neither_waited_for_nor_recalled,
    an_asker_whose_notices_are_lost_tries_a_last_time,
    an_allowance_that_begins_to_lack_during_the_wait_gets_its_own_bound,
    what_gets_free_at_home_during_the_last_try_is_tried,
    a_lost_grant_is_told_of_in_a_later_answer,
    a_lost_return_is_told_of_again,
    a_renewal_gets_nothing_under_recall,
    below_a_lowered_limit_what_gets_free_goes_back,
    a_process_cut_off_admits_from_what_it_has_and_asks_in_vain,
    a_parked_row_is_kept_at_the_close_and_repaired_after_it,
    a_parked_row_is_repaired_to_less_while_its_process_lives,
    after_an_operators_release_the_machine_comes_back,
    a_sync_that_arrives_after_the_close_gives_nothing,
    a_power_cut_between_settled_and_its_sync,
    a_close_keeps_no_more_than_is_out,
    a_grant_that_was_lost_with_a_commit_ends_the_incarnation,
)
