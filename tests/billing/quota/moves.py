"""What may happen in the world, at any time and in any order; each move draws what it needs by `pick`."""

from __future__ import annotations

from collections.abc import Callable

from app.core.ids import AllowanceId
from billing.quota.lease import Hold
from billing.quota.model import Need
from tests.billing.quota.parts import (
    ALLOWANCES,
    BOUND_S,
    CONCURRENT,
    EVERY,
    JOURNALED,
    RATE,
    RATED,
    Pick,
    Process,
)
from tests.billing.quota.world import World

A, B = ALLOWANCES
NEEDED = ((A,), (B,), (A, B), (B, A), (RATED,), (CONCURRENT,), EVERY, (RATED, A))
MAX_ALIVE = 3
MAX_BORN = 6


def birth(world: World, _pick: Pick) -> None:
    if len(list(world.alive())) < MAX_ALIVE and len(world.processes) < MAX_BORN:
        world.birth()


def admit(world: World, pick: Pick) -> None:
    if process := some_process(world, pick):
        world.admit(process, needs(pick))


def serve(world: World, pick: Pick) -> None:
    """A request from beginning to end: admitted or asked for, settled, made durable."""
    if process := some_process(world, pick):
        wanted = needs(pick)
        if not world.admit(process, wanted):
            world.ask(process, wanted)
            world.run_fairly(world.now + BOUND_S / 3)
        settle(world, pick)
        process.flush(len(process.journal))


def ask(world: World, pick: Pick) -> None:
    if process := some_process(world, pick):
        world.ask(process, needs(pick))


def abandon(world: World, pick: Pick) -> None:
    process = some_process(world, pick)
    if process and process.asks:
        request = list(process.asks)[pick(len(process.asks))]
        process.exchange.asks.abandon(process.asks.pop(request))


def withdraw(world: World, pick: Pick) -> None:
    """A request is granted and goes away before its record is written."""
    if process := some_process(world, pick):
        hold = process.leases.admit(needs(pick))
        if hold is not None:
            process.leases.withdraw(hold)


def settle(world: World, pick: Pick) -> None:
    process = some_process(world, pick)
    if process and process.holds:
        request = list(process.holds)[pick(len(process.holds))]
        used = {n.allowance_id: amount_used(n, pick) for n in process.holds[request].needs}
        world.settle(process, request, used)


def consume(world: World, pick: Pick) -> None:
    """A running request consumes some of a rate."""
    process = some_process(world, pick)
    if process:
        rated = [r for r, hold in process.holds.items() if any(n.rate is not None for n in hold.needs)]
        if rated:
            world.consume(process, rated[pick(len(rated))], 1 + pick(8))


def flush(world: World, pick: Pick) -> None:
    if process := some_process(world, pick):
        process.flush(pick(len(process.journal) + 1))


def compose(world: World, pick: Pick) -> None:
    if process := some_process(world, pick):
        world.compose(process)


def deliver(world: World, pick: Pick) -> None:
    if world.messages:
        world.deliver(*world.messages[near_the_end(len(world.messages), pick)])


def receive(world: World, pick: Pick) -> None:
    if world.answers:
        world.receive(*world.answers[near_the_end(len(world.answers), pick)])


def talk(world: World, pick: Pick) -> None:
    """A message and its answer, undisturbed."""
    process = some_process(world, pick)
    if process and world.compose(process):
        world.deliver(*world.messages[-1])
        world.receive(*world.answers[-1])


def lose(world: World, pick: Pick) -> None:
    process = some_process(world, pick)
    if process and process.exchange.busy:
        world.fail(process)


def notice(world: World, pick: Pick) -> None:
    if world.notices:
        process, allowance = world.notices[near_the_end(len(world.notices), pick)]
        if process.alive:
            process.exchange.notice(allowance, now=world.now)


def wait(world: World, pick: Pick) -> None:
    world.now += (0.05, 0.2, 0.3, 2.5, 5.5, 6.5)[pick(6)]


def turn(world: World, _pick: Pick) -> None:
    world.turn()


def post(world: World, pick: Pick) -> None:
    if world.processes:
        process = world.processes[pick(len(world.processes))]
        world.post(process, 1 + pick(4), park=pick(4) == 0)


def resolve(world: World, pick: Pick) -> None:
    parked = [(process, request) for process in world.processes for request in process.parked]
    if parked:
        process, request = parked[pick(len(parked))]
        needs_of = process.parked[request].needs
        used = {n.allowance_id: amount_used(n, pick) for n in needs_of}
        world.resolve(process, request, used)


def die(world: World, pick: Pick) -> None:
    if process := some_process(world, pick):
        world.die(process, journal_ends=pick(len(process.journal) + 1))


def close(world: World, pick: Pick) -> None:
    dead = [p for p in world.processes if not p.alive]
    if dead:
        world.close(dead[pick(len(dead))], pick)


def die_and_settle(world: World, pick: Pick) -> None:
    if process := some_process(world, pick):
        world.die(process, journal_ends=pick(len(process.journal) + 1))
        world.close(process, pick)


def release(world: World, pick: Pick) -> None:
    process = some_process(world, pick)
    if process and pick(4) == 0:
        world.release(process)


def shut_down(world: World, pick: Pick) -> None:
    process = some_process(world, pick)
    if process and not process.exchange.busy:
        process.unsure = True
        world.messages.append((process, process.exchange.compose_farewell(now=world.now)))
        world.deliver(*world.messages[-1])


def change_limit(world: World, pick: Pick) -> None:
    by = (-6, -1, 3, 8)[pick(4)]
    world.twin.now = world.now
    world.twin.change_limit(ALLOWANCES[pick(2)], by=by)


def give_all(world: World, pick: Pick) -> None:
    """One process borrows all there is, and frees it again."""
    process = some_process(world, pick)
    if process:
        allowance = EVERY[pick(4)]
        amount = world.twin.available(allowance)
        if amount > 0:
            request = world.ask(process, [need_of(allowance, amount)])
            world.run_fairly(world.now + BOUND_S / 3)
            if request in process.holds and pick(2):
                world.settle(process, request, {allowance: 0})


def fair_ask(world: World, pick: Pick) -> None:
    """When all are heard, a need ends in a hold exactly if what is really uncommitted covers it.

    While it waits, another request may end and cover it.
    """
    world.settle_network()
    heard = world.responsive()
    if not heard:
        return
    process, wanted = heard[pick(len(heard))], needs(pick)
    request = world.ask(process, wanted)
    if pick(2):
        world.run_fairly(world.now + BOUND_S / 2, done=lambda: request in world.outcomes)
        other = heard[pick(len(heard))]
        for held in list(other.holds)[:1]:
            if held != request:
                world.settle(other, held, {n.allowance_id: 0 for n in other.holds[held].needs})
        other.flush(len(other.journal))
    world.run_fairly(world.now + 2, done=lambda: request in world.outcomes)
    assert request in world.outcomes, "L2: every waiter ends"
    if not isinstance(world.outcomes[request], Hold):
        covered = all(world.uncommitted(n.allowance_id) >= n.amount for n in wanted)
        assert not covered, "L1: refused only what is not there"


def fair_duel(world: World, pick: Pick) -> None:
    """Two processes want all there is at the same time: one of them gets it."""
    world.settle_network()
    heard = world.responsive()
    if len(heard) < 2:
        return
    chosen = (ALLOWANCES, (*ALLOWANCES, RATED), (RATED,))[pick(3)]
    wanted = [need_of(a, max(world.uncommitted(a), 0)) for a in chosen]
    first, second = (heard[(pick(len(heard)) + step) % len(heard)] for step in (0, 1))
    if first is second:
        return
    if pick(2):
        spread(world, first, second, wanted)
    requests = [world.ask(first, wanted), world.ask(second, wanted)]
    world.run_fairly(world.now + 2, done=lambda: all(r in world.outcomes for r in requests))
    outcomes = [world.outcomes[request] for request in requests]
    assert any(isinstance(outcome, Hold) for outcome in outcomes), "L1: one of two gets what is there"


def spread(world: World, first: Process, second: Process, wanted: list[Need]) -> None:
    """Each of the two has one of the allowances free."""
    for process, need in zip((first, second), wanted[:2], strict=False):
        request = world.ask(process, [need])
        world.run_fairly(world.now, done=lambda r=request: r in world.outcomes)  # type: ignore[misc]
        if request in process.holds:
            world.settle(process, request, {need.allowance_id: 0})
            process.flush(len(process.journal))


def doomsday(world: World, pick: Pick) -> None:
    """I8: all dead, settled, closed, repaired; all messages replayed: nothing is out."""
    for process in list(world.alive()):
        world.die(process, journal_ends=pick(len(process.journal) + 1))
    for process in world.processes:
        world.close(process, lambda n: n - 1)
        for request, entry in list(process.parked.items()):
            world.resolve(process, request, {n.allowance_id: 0 for n in entry.needs})
    world.check()
    spent = {a: own.spent for a, own in world.twin.allowances.items()}
    for process, message in world.messages:
        world.deliver(process, message)
    assert spent == {a: own.spent for a, own in world.twin.allowances.items()}, "I8: a replay changes nothing"
    assert all(world.twin.outstanding(a) == 0 for a in JOURNALED), "I8: nothing is out"
    world.now += 60
    world.turn()
    assert world.twin.available(RATED) == RATE.burst, "I8: nothing of a rate is out, and it fills"


def some_process(world: World, pick: Pick) -> Process | None:
    alive = list(world.alive())
    return alive[pick(len(alive))] if alive else None


def needs(pick: Pick) -> list[Need]:
    amounts = (0, 1, 2, 3, 5, 8)
    chosen = NEEDED[pick(len(NEEDED))]
    return [need_of(allowance, amounts[pick(len(amounts))]) for allowance in chosen]


def need_of(allowance: AllowanceId, amount: int) -> Need:
    """Of concurrency, a request needs one."""
    if allowance == CONCURRENT:
        return Need(allowance, min(amount, 1))
    return Need(allowance, amount, RATE if allowance == RATED else None)


def amount_used(need: Need, pick: Pick) -> int:
    if need.allowance_id == CONCURRENT:
        return 0
    return (need.amount // 2, 0, need.amount, need.amount + 2)[pick(4)]


def near_the_end(length: int, pick: Pick) -> int:
    """Half of the time the newest, else any of the past."""
    return length - 1 if pick(2) else pick(length)


MOVES: tuple[Callable[[World, Pick], None], ...] = (
    birth, admit, serve, ask, abandon, withdraw, settle, flush, compose, deliver, receive, talk, lose, notice,
    wait, post, resolve, die, close, die_and_settle, release, shut_down, change_limit, give_all, fair_ask,
    fair_duel, consume, turn,
)  # fmt: skip
WEIGHTS = (2, 8, 6, 6, 1, 1, 8, 4, 6, 8, 6, 8, 2, 4, 3, 5, 2, 1, 1, 1, 1, 1, 2, 3, 4, 3, 4, 1)
