"""The SQL and its twin give the same answers to the same moves."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import asyncpg
import msgspec
import pytest

from app.core.ids import AllowanceId, IncarnationId
from billing.quota.model import Answer, LeaseReport, Need, Rate, Sync
from tests.billing.quota.desk import Desk
from tests.billing.quota.twin import Allowance, Incarnation, Twin, rated

AMOUNTS = (0, 1, 2, 3, 5, 10**25)


RATE = Rate(per_minute=70, burst=9)


class RecallsForGood(Twin):
    """Recall does not end by time, as `keep_recalls` has it in the database."""

    def renewal_waits(self, allowance: AllowanceId) -> bool:
        return self.allowances[allowance].recall_until != 0


class Both:
    """Makes each move in both and compares what can be seen.

    A rate's time is told to both: it begins a day ahead of the database's own clock, which moves nothing.
    """

    def __init__(self, desk: Desk, seed: int) -> None:
        self.desk, self.twin, self.draw = desk, RecallsForGood(), random.Random(seed)
        self.allowances: list[AllowanceId] = []
        self.incarnations: list[IncarnationId] = []
        self.messages: list[tuple[IncarnationId, Sync]] = []

    async def begin(self) -> None:
        for number in range(2):
            limit = self.draw.choice((7, 40, 3 * 10**25))
            self.allowances.append(await self.desk.allowance(limit, scope=f"wallet{number}"))
            self.twin.allowances[self.allowances[-1]] = Allowance(limit)
        self.rate = await self.desk.rate(RATE)
        self.twin.allowances[self.rate] = rated(RATE)
        self.start = await self.desk.pool.fetchval("SELECT now() + interval '1 day'")
        await self.desk.as_owner("UPDATE allowance SET level_at = $1 WHERE id = $2", self.start, self.rate)
        for _ in range(2):
            self.incarnations.append(await self.desk.incarnation())
            self.twin.incarnations[self.incarnations[-1]] = Incarnation()

    async def step(self) -> None:
        await self.draw.choices(
            (self.new_message, self.old_message, self.post, self.limit, self.close, self.wait),
            (12, 4, 6, 2, 1, 4),
        )[0]()
        await self._compare_rate()
        for allowance in self.allowances:
            status, own = await self.desk.status(allowance), self.twin.allowances[allowance]
            assert (status.limit, status.spent, status.unleased) == (own.limit, own.spent, own.unleased)
            assert status.outstanding == self.twin.outstanding(allowance)
            assert status.available == self.twin.available(allowance)

    async def _compare_rate(self) -> None:
        query = "SELECT level_micros, level_at - $2::timestamptz AS gone FROM allowance WHERE id = $1"
        row = await self.desk.pool.fetchrow(query, self.rate, self.start)
        own = self.twin.allowances[self.rate]
        assert row is not None
        assert (row["level_micros"], row["gone"]) == (own.level, timedelta(microseconds=own.at_us))
        status = await self.desk.status(self.rate)
        assert status.outstanding == self.twin.outstanding(self.rate)

    async def wait(self) -> None:
        """Time goes by for the rate, and back now and then."""
        self.twin.now += self.draw.choice((-0.7, 0.013, 0.35, 1.1, 4.0))
        self.twin.turn(self.rate)
        now = self.start + timedelta(microseconds=self.twin.now_us)
        await self.desk.pool.execute("SELECT quota_turn($1, $2)", [self.rate], now)

    async def new_message(self) -> None:
        incarnation = self.draw.choice(self.incarnations)
        sequence = max((m.sequence for i, m in self.messages if i == incarnation), default=0) + 1
        leases = [
            LeaseReport(allowance, self._returned(allowance, incarnation), self.draw.choice(AMOUNTS))
            for allowance in self.draw.sample(self.allowances, self.draw.randint(0, 2))
        ]
        if self.draw.random() < 0.7:
            leases.append(self._report_of_rate(incarnation))
        asks = tuple(
            tuple(
                Need(allowance, self.draw.choice(AMOUNTS))
                for allowance in self.draw.sample([*self.allowances, self.rate], self.draw.randint(1, 2))
            )
            for _ in range(self.draw.randint(0, 2))
        )
        self.messages.append((incarnation, Sync(sequence, tuple(leases), asks)))
        await self._deliver(*self.messages[-1])

    async def old_message(self) -> None:
        if self.messages:
            await self._deliver(*self.draw.choice(self.messages))

    async def post(self) -> None:
        incarnation = self.draw.choice(self.incarnations)
        uses = [
            (self.draw.choice(self.allowances), self.draw.choice(AMOUNTS), self.draw.choice(AMOUNTS))
            for _ in range(self.draw.randint(0, 3))
        ]
        before = {a: self.twin.allowances[a].unleased for a in self.allowances}
        self.twin.post(incarnation, uses)
        told = await self.desk.post(incarnation, *uses)
        assert told == {a: self.twin.allowances[a].unleased - before[a] for a in {use[0] for use in uses}}

    async def limit(self) -> None:
        allowance, by = self.draw.choice(self.allowances), self.draw.choice((-5, 5, 10**25))
        self.twin.change_limit(allowance, by=by)
        await self.desk.change_limit(allowance, by=by)

    async def close(self) -> None:
        incarnation, parked = (
            self.draw.choice(self.incarnations),
            {self.allowances[0]: self.draw.choice(AMOUNTS)},
        )
        released = self.draw.random() < 0.5
        with self._at_a_standstill():
            self.twin.close(incarnation, parked, released=released)
        await self.desk.close(incarnation, parked, released=released)

    def _returned(self, allowance: AllowanceId, incarnation: IncarnationId) -> int:
        row = self.twin.row(allowance, incarnation)
        return row.returned + self.draw.randint(0, row.outstanding)

    def _report_of_rate(self, incarnation: IncarnationId) -> LeaseReport:
        """A true report, or one of a lease that has ended."""
        row = self.twin.row(self.rate, incarnation)
        consumed = row.settled + self.draw.randint(0, row.outstanding)
        returned = row.returned + self.draw.randint(0, row.granted - consumed - row.returned)
        epoch = self.draw.choice((row.epoch, row.epoch, row.epoch, max(row.epoch - 1, 0)))
        return LeaseReport(self.rate, returned, self.draw.choice(AMOUNTS), consumed, epoch)

    async def _deliver(self, incarnation: IncarnationId, message: Sync) -> None:
        with self._at_a_standstill():
            expected = self.twin.sync(incarnation, message)
        assert comparable(await self.desk.sync(incarnation, message)) == comparable(expected)
        for (allowance, of), row in self.twin.rows.items():
            if row.epoch:
                heard_at = self.start + timedelta(microseconds=row.heard_us)
                query = "UPDATE lease SET heard_at = $3 WHERE (allowance_id, incarnation_id) = ($1, $2)"
                await self.desk.pool.execute(query, allowance, of, heard_at)

    @contextmanager
    def _at_a_standstill(self) -> Iterator[None]:
        """For the rate no time goes by: it does so in `wait` alone."""
        now, self.twin.now = self.twin.now, min(self.twin.now, self.twin.allowances[self.rate].at_us / 1e6)
        yield
        self.twin.now = now


def comparable(answer: Answer) -> tuple[object, ...]:
    """An answer without the time that a recall still lasts."""
    states = sorted(
        msgspec.structs.astuple(msgspec.structs.replace(state, recall_ms=0)) for state in answer.leases
    )
    return answer.sequence, answer.closed, answer.asks, states


async def keep_recalls(desk: Desk) -> None:
    """Recall must not end by time, or the two clocks would have to agree."""
    owner = await asyncpg.connect(desk.owner_url)
    try:
        await owner.execute(
            "CREATE FUNCTION keep_recalled() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " IF NEW.recall_until IS NOT NULL THEN"
            " NEW.recall_until := clock_timestamp() + interval '1 hour'; END IF; RETURN NEW; END $$;"
            "CREATE TRIGGER keep BEFORE UPDATE ON allowance FOR EACH ROW EXECUTE FUNCTION keep_recalled()"
        )
    finally:
        await owner.close()


@pytest.mark.parametrize("seed", range(6))
async def test_the_sql_answers_as_its_twin(desk: Desk, seed: int) -> None:
    await keep_recalls(desk)
    both = Both(desk, seed)
    await both.begin()
    for _ in range(60):
        await both.step()
    for allowance in both.allowances:
        rows = [(i, both.twin.row(allowance, i)) for i in both.incarnations]
        stored = await desk.pool.fetch("SELECT * FROM lease WHERE allowance_id = $1", allowance)
        by_incarnation = {row["incarnation_id"]: row for row in stored}
        for incarnation, row in rows:
            if incarnation in by_incarnation:
                found = by_incarnation[incarnation]
                assert (found["granted"], found["settled"], found["returned"], found["uncovered"]) == (
                    row.granted,
                    row.settled,
                    row.returned,
                    row.uncovered,
                )
