"""The SQL and its twin give the same answers to the same moves."""

from __future__ import annotations

import random

import asyncpg
import pytest

from app.core.ids import AllowanceId, IncarnationId
from billing.quota.model import Answer, LeaseReport, Need, Sync
from tests.billing.quota.desk import Desk
from tests.billing.quota.twin import Allowance, Incarnation, Twin

AMOUNTS = (0, 1, 2, 3, 5, 10**25)


class Both:
    """Makes each move in both and compares what can be seen. Recall lasts: the twin's clock stands still."""

    def __init__(self, desk: Desk, seed: int) -> None:
        self.desk, self.twin, self.draw = desk, Twin(), random.Random(seed)
        self.allowances: list[AllowanceId] = []
        self.incarnations: list[IncarnationId] = []
        self.messages: list[tuple[IncarnationId, Sync]] = []

    async def begin(self) -> None:
        for number in range(2):
            limit = self.draw.choice((7, 40, 3 * 10**25))
            self.allowances.append(await self.desk.allowance(limit, scope=f"wallet{number}"))
            self.twin.allowances[self.allowances[-1]] = Allowance(limit)
        for _ in range(2):
            self.incarnations.append(await self.desk.incarnation())
            self.twin.incarnations[self.incarnations[-1]] = Incarnation()

    async def step(self) -> None:
        await self.draw.choices(
            (self.new_message, self.old_message, self.post, self.limit, self.close), (10, 4, 6, 2, 1)
        )[0]()
        for allowance in self.allowances:
            status, own = await self.desk.status(allowance), self.twin.allowances[allowance]
            assert (status.limit, status.spent, status.unleased) == (own.limit, own.spent, own.unleased)
            assert status.outstanding == self.twin.outstanding(allowance)
            assert status.available == self.twin.available(allowance)

    async def new_message(self) -> None:
        incarnation = self.draw.choice(self.incarnations)
        sequence = max((m.sequence for i, m in self.messages if i == incarnation), default=0) + 1
        leases = tuple(
            LeaseReport(allowance, self._returned(allowance, incarnation), self.draw.choice(AMOUNTS))
            for allowance in self.draw.sample(self.allowances, self.draw.randint(0, 2))
        )
        asks = tuple(
            tuple(
                Need(allowance, self.draw.choice(AMOUNTS))
                for allowance in self.draw.sample(self.allowances, self.draw.randint(1, 2))
            )
            for _ in range(self.draw.randint(0, 2))
        )
        self.messages.append((incarnation, Sync(sequence, leases, asks)))
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
        self.twin.close(incarnation, parked, released=released)
        await self.desk.close(incarnation, parked, released=released)

    def _returned(self, allowance: AllowanceId, incarnation: IncarnationId) -> int:
        row = self.twin.row(allowance, incarnation)
        return row.returned + self.draw.randint(0, row.outstanding)

    async def _deliver(self, incarnation: IncarnationId, message: Sync) -> None:
        expected = self.twin.sync(incarnation, message)
        assert comparable(await self.desk.sync(incarnation, message)) == comparable(expected)


def comparable(answer: Answer) -> tuple[object, ...]:
    """An answer without the time that a recall still lasts."""
    states = sorted(
        (s.allowance_id, s.granted, s.returned, s.limit, s.spent, s.available) for s in answer.leases
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
