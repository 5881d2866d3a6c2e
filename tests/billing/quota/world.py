"""Processes, journals, a settler, an operator and a network that never forgets, around the real code.

`moves` says what may happen. `check` holds the laws of the protocol against the ghost: the journals and
the events, which no party sees as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from app.core.ids import AllowanceId, IncarnationId
from billing.quota.lease import Hold, Lease
from billing.quota.model import Answer, Denied, Need, Sync
from tests.billing.quota.flow import Flow
from tests.billing.quota.parts import (
    ALLOWANCES,
    BOUND_S,
    CONCURRENT,
    JOURNALED,
    RATE,
    RATED,
    RENEW_S,
    Entry,
    Pick,
    Process,
    Rules,
)
from tests.billing.quota.twin import MICROS, Allowance, Incarnation, rated


class World:
    def __init__(self, rules: Rules, limits: Sequence[int]) -> None:
        self.rules, self.now, self.requests = rules, 0.0, 0
        self.twin = rules.twin()
        self.twin.allowances = {a: Allowance(limit) for a, limit in zip(ALLOWANCES, limits, strict=True)}
        self.twin.allowances |= {CONCURRENT: Allowance(4), RATED: rated(RATE)}
        self.flow = Flow(RATE)
        self.processes: list[Process] = []
        self.messages: list[tuple[Process, Sync]] = []
        self.answers: list[tuple[Process, Answer]] = []
        self.notices: list[tuple[Process, AllowanceId]] = []
        self.events: dict[int, dict[AllowanceId, int]] = {}
        self.outcomes: dict[int, Hold | Denied] = {}
        self.released: set[IncarnationId] = set()
        self._before = self._snapshot()

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return round(self.now * 1000)

    # What a process does

    def birth(self) -> Process:
        leases = self.rules.leases(clock=self, rates_when_cut_off="closed")
        exchange = self.rules.exchange(leases, recall_bound_s=BOUND_S, renew_s=RENEW_S)
        exchange.asks = self.rules.asks(leases, bound_s=BOUND_S)
        process = Process(IncarnationId(f"inc_{len(self.processes)}"), leases, exchange)
        self.twin.incarnations[process.id] = Incarnation()
        self.processes.append(process)
        return process

    def admit(self, process: Process, needs: Sequence[Need]) -> bool:
        hold = process.leases.admit(needs)
        if hold is not None:
            self.requests += 1
            self._journal_hold(process, self.requests, hold)
        return hold is not None

    def ask(self, process: Process, needs: Sequence[Need]) -> int:
        self.requests += 1
        request = self.requests

        def resolve(outcome: Hold | Denied) -> None:
            process.asks.pop(request, None)
            self.outcomes[request] = outcome
            if isinstance(outcome, Hold):
                self._journal_hold(process, request, outcome)

        ask = process.exchange.ask(needs, now=self.now, resolve=resolve)
        if ask is not None and request not in self.outcomes:
            process.asks[request] = ask
        return request

    def settle(self, process: Process, request: int, used: dict[AllowanceId, int]) -> None:
        hold = process.holds.pop(request)
        journaled = {a: amount for a, amount in used.items() if a != RATED}
        process.journal.append(Entry(request, _journaled(hold), journaled))
        process.releases[len(process.journal) - 1] = process.leases.settle(hold, used)
        for need in hold.needs:
            if need.rate is not None:
                total = max(min(used.get(RATED, 0), need.amount), hold.consumed_of(need))
                self.flow.consumed(request, total, now_us=self.twin_us, ends=True)

    def consume(self, process: Process, request: int, total: int) -> None:
        hold = process.holds[request]
        process.leases.consume(hold, RATED, total=total)
        self.flow.consumed(request, hold.consumed.get(RATED, 0), now_us=self.twin_us)

    def compose(self, process: Process) -> bool:
        if not process.alive or not process.exchange.has_work(now=self.now):
            return False
        message = process.exchange.compose(now=self.now)
        if message is not None:
            self.messages.append((process, message))
        return message is not None

    def deliver(self, process: Process, message: Sync) -> None:
        self.twin.now = self.now
        self.answers.append((process, self.twin.sync(process.id, message)))
        self._spread_notices()

    def receive(self, process: Process, answer: Answer) -> None:
        if process.alive:
            waited_for = process.exchange.awaits(answer)
            process.exchange.receive(answer, now=self.now)
            process.unsure = process.unsure and not waited_for

    def fail(self, process: Process) -> None:
        process.unsure = True
        process.exchange.fail(now=self.now)

    def _journal_hold(self, process: Process, request: int, hold: Hold) -> None:
        process.holds[request] = hold
        process.journal.append(Entry(request, _journaled(hold)))
        for need, lease in zip(hold.needs, hold.leases, strict=True):
            if need.rate is not None:
                self.flow.admitted(
                    request, process.id, epoch=lease.epoch, held=need.amount, now_us=self.twin_us
                )

    # What settler and operator do

    def post(self, process: Process, count: int, *, park: bool = False) -> None:
        """Post the next records, which the settler has synced itself; `park`: the last cannot be posted."""
        upto = min(process.posted + count, len(process.journal))
        process.durable = max(process.durable, upto)
        uses = []
        for entry in process.journal[process.posted : upto]:
            if entry.used is None:
                continue
            if park and entry is process.journal[upto - 1]:
                process.parked[entry.request] = self._covered(entry)
            else:
                uses += self._event(entry.request, entry.needs, entry.used)
        process.posted = upto
        self._post(process, uses)

    def resolve(self, process: Process, request: int, used: dict[AllowanceId, int]) -> None:
        """A parked record is repaired, to what it used in truth: maybe less, maybe more than it says."""
        entry = process.parked.pop(request)
        if request not in self.events:
            self.events[request] = used
            takes = self.twin.repair_takes
            ids = [(n.allowance_id, n.amount, used[n.allowance_id]) for n in entry.needs]
            self._post(process, [(allowance, takes(parked, x), x) for allowance, parked, x in ids])

    def die(self, process: Process, *, journal_ends: int) -> None:
        process.alive = False
        self.flow.died(process.id)
        kept = max(journal_ends, process.durable)
        del process.journal[kept:]

    def close(self, process: Process, pick: Pick) -> None:
        """The settler has the lock: what ran is settled as lost, all is posted, the incarnation ends."""
        settled = {entry.request for entry in process.journal if entry.used is not None}
        for entry in [entry for entry in process.journal if entry.request not in settled]:
            lost = {n.allowance_id: pick(n.amount + 1) for n in entry.needs if n.allowance_id != CONCURRENT}
            lost |= {n.allowance_id: 0 for n in entry.needs if n.allowance_id == CONCURRENT}
            process.journal.append(Entry(entry.request, entry.needs, lost))
        self.post(process, len(process.journal), park=pick(3) == 0)
        self.twin.now = self.now
        self.twin.close(process.id, self._parked(process))
        self._spread_notices()

    def release(self, process: Process) -> None:
        self.released.add(process.id)
        self.twin.now = self.now
        self.twin.close(process.id, self._parked(process), released=True)
        self._spread_notices()

    def _covered(self, entry: Entry) -> Entry:
        """What a settled record still takes of its leases: the process has freed the rest."""
        assert entry.used is not None
        takes = [Need(n.allowance_id, min(n.amount, entry.used[n.allowance_id])) for n in entry.needs]
        return Entry(entry.request, tuple(takes), entry.used)

    def _parked(self, process: Process) -> dict[AllowanceId, int]:
        held = dict.fromkeys(JOURNALED, 0)
        for entry in process.parked.values():
            for need in entry.needs:
                held[need.allowance_id] += need.amount
        return held

    def _event(
        self, request: int, needs: tuple[Need, ...], used: dict[AllowanceId, int]
    ) -> list[tuple[AllowanceId, int, int]]:
        if request in self.events:
            return []
        self.events[request] = used
        covers = self.twin.covers
        return [(n.allowance_id, covers(n.amount, used[n.allowance_id]), used[n.allowance_id]) for n in needs]

    def _post(self, process: Process, uses: list[tuple[AllowanceId, int, int]]) -> None:
        self.twin.now = self.now
        self.twin.post(process.id, uses)
        self._spread_notices()

    @property
    def twin_us(self) -> int:
        return round(self.now * MICROS)

    def turn(self) -> None:
        """The authority brings its rate up to now."""
        self.twin.now = self.now
        self.twin.turn(RATED)
        self._spread_notices()

    def _spread_notices(self) -> None:
        for _, incarnation, epoch, at_us in self.twin.ended:
            self.flow.lease_ended(incarnation, epoch, at_us=at_us)
        self.twin.ended.clear()
        self.notices += [(process, a) for a in self.twin.told for process in self.processes]
        self.twin.told.clear()

    # A fair schedule: every message arrives, at once

    def run_fairly(self, until: float, *, done: Callable[[], bool] = lambda: False) -> None:
        while not done():
            self._exchange_all()
            wakes = [p.exchange.next_wake() for p in self.responsive()]
            self.now = min([wake for wake in wakes if wake is not None] + [until])
            if self.now >= until:
                return

    def responsive(self) -> list[Process]:
        return [
            p
            for p in self.processes
            if p.alive and not p.leases.closed and not self.twin.incarnations[p.id].closed
        ]

    def settle_network(self) -> None:
        """Nothing is under way, all is durable, recalls are over, nobody waits."""
        for process in self.processes:
            if process.alive:
                self.fail(process)
                process.flush(len(process.journal))
        self.run_fairly(self.now + 3.0)
        assert not any(process.asks for process in self.responsive()), "L2: every waiter ends"

    def uncommitted(self, allowance: AllowanceId) -> int:
        """What is really free: less what is spent, held or settled, and all that the silent ones have."""
        if allowance == RATED:
            return self._uncommitted_of_rate()
        own = self.twin.allowances[allowance]
        committed = own.spent
        heard = self.responsive()
        for process in self.processes:
            o = self.twin.row(allowance, process.id).outstanding
            committed += process.needs_after(len(process.journal))[allowance] if process in heard else o
        return own.limit - committed

    def _uncommitted_of_rate(self) -> int:
        """What the bucket has by now, and what the processes that are heard have and hold not."""
        self.turn()
        there = self.twin.available(RATED)
        for process in self.responsive():
            row, lease = self.twin.row(RATED, process.id), process.leases.find(RATED)
            mine = lease is not None and lease.epoch == row.epoch and lease.is_known
            there += row.outstanding
            if lease is not None and mine:
                there -= lease.held + lease.covered - row.settled
        return there

    def _exchange_all(self) -> None:
        for _ in range(200):
            moved = [self._converse(process) for process in self.responsive()]
            if not any(moved) and not self.notices:
                return
            notices, self.notices = self.notices, []
            for process, allowance in notices:
                if process.alive:
                    process.exchange.notice(allowance, now=self.now)
        raise AssertionError("L2: messages end under a fair schedule")

    def _converse(self, process: Process) -> bool:
        if not self.compose(process):
            return False
        self.deliver(*self.messages[-1])
        self.receive(*self.answers[-1])
        return True

    # The laws

    def check(self) -> None:
        self._check_authority()
        for process in self.processes:
            self._check_process(process)
        self._before = self._snapshot()

    def _check_authority(self) -> None:
        self.flow.check()
        for key, row in self.twin.rows.items():
            assert row.outstanding >= 0, "I1, R3: outstanding is never negative"
            old = self._before[1].get((key, row.epoch), (0, 0, 0))
            assert row.granted >= old[0], "I1: counters never fall"
            assert row.settled >= old[1], "I1: counters never fall"
            assert row.returned >= old[2], "I1: counters never fall"
            assert not row.uncovered or key[1] in self.released, "I7: a post finds what it takes"
        level, out = self.twin.allowances[RATED].level, self.twin.outstanding(RATED)
        assert 0 <= level <= (RATE.burst - out) * MICROS, "R2: what is in and out of the bucket fits into it"
        for allowance in JOURNALED:
            own = self.twin.allowances[allowance]
            out = own.spent + self.twin.outstanding(allowance)
            if out - own.unleased > self._before[0][allowance]:
                assert out <= own.limit, "I2: committed rises only within the limit"
            spent = sum(used.get(allowance, 0) for used in self.events.values())
            assert own.spent == spent, "I6: spent is the sum of the events"

    def _check_process(self, process: Process) -> None:
        outstanding = {a: self.twin.row(a, process.id).outstanding for a in JOURNALED}
        if process.id not in self.released:
            if self.twin.incarnations[process.id].closed:
                assert outstanding == self._parked(process), "I5: closed keeps what is parked, for ever"
                return
            for cut in range(process.durable, len(process.journal) + 1):
                for allowance, due in process.needs_after(cut).items():
                    assert due <= outstanding[allowance], "the lease covers whatever the disk may keep"
        if process.alive:
            self._check_memory(process, outstanding)

    def _check_memory(self, process: Process, outstanding: dict[AllowanceId, int]) -> None:
        due = process.needs_after(len(process.journal))
        for lease in process.leases:
            held = sum(
                need.amount - hold.consumed_of(need)
                for hold in process.holds.values()
                for need, of in zip(hold.needs, hold.leases, strict=True)
                if of is lease and (need.rate is None or hold.is_of(lease))
            )
            assert min(lease.free, lease.pending) >= 0, "I3: nothing is free twice"
            assert lease.held == held, "I3: held is what open requests hold"
            parts = lease.free + lease.held + lease.returned + lease.covered
            assert parts == lease.granted, "I3: the parts are what was granted"
            if lease.allowance_id == RATED:
                self._check_rate(process, lease)
            elif process.id not in self.released:
                assert lease.free + due[lease.allowance_id] <= outstanding[lease.allowance_id]
                if not process.exchange.busy and not process.unsure:
                    row = self.twin.row(lease.allowance_id, process.id)
                    known = row.granted - (0 if lease.is_known else row.settled + row.returned)
                    assert lease.granted == known, "I4: nothing unanswered, all grants known"

    def _check_rate(self, process: Process, lease: Lease) -> None:
        row = self.twin.rows.get((RATED, process.id))
        if row is not None and row.epoch == lease.epoch:
            assert lease.free + lease.held <= row.outstanding, "what a process has of a rate is out"
        elif lease.free:
            assert self.now >= lease.ends_at, "a process stops before the authority counts its lease as used"

    def _snapshot(self) -> tuple[dict[AllowanceId, int], dict[object, tuple[int, int, int]]]:
        committed = {
            a: own.spent + self.twin.outstanding(a) - own.unleased for a, own in self.twin.allowances.items()
        }
        return committed, {
            (key, row.epoch): (row.granted, row.settled, row.returned) for key, row in self.twin.rows.items()
        }

    def alive(self) -> Iterator[Process]:
        return (process for process in self.processes if process.alive)


def _journaled(hold: Hold) -> tuple[Need, ...]:
    """What the journal names: rates never touch it."""
    return tuple(need for need in hold.needs if need.rate is None)
