"""The audit finds what is wrong, each in its class: a figure of 0 says something only because of this."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from app.core import ids
from billing.journal import lock
from billing.journal.frames import pack
from billing.journal.join import digest
from billing.journal.model import Admitted, Progress, Reading, Settled, encode
from billing.journal.settler import Settler
from billing.metering.model import Usage
from tests.billing.journal import journals
from tests.billing.journal.shop import Catalogue, Shop, open_shop, settled
from tests.database import Database
from tests.faults.audit import of_clients, of_engine, of_journals, price_of
from tests.faults.books import Books, of_database
from tests.faults.client import Kind, Received
from tests.faults.finding import Wrong, tally
from tests.faults.journals import Journals

SOMEONE = Catalogue(ids.tenant_id(), ids.allowance_id())
USED = Usage(input=10, output=20)
TOLD = {"prompt_tokens": 10, "completion_tokens": 20}


class Case:
    """A journal, events and clients of a few requests, all right at first."""

    def __init__(self, folder: Path) -> None:
        self.journal = journals.dead(folder, ids.incarnation_id(), b"")
        self.books = Books(Journals(folder))
        self.received: list[Received] = []
        self.served: dict[str, dict[str, Any]] = {}
        self.deaths_ms: list[int] = []

    def happens(self) -> str:
        """A request is admitted, answered to its end, settled and recorded; returns its id."""
        admitted = SOMEONE.admitted()
        end = settled(admitted, USED)
        self.writes(admitted, end)
        self.records(admitted, end)
        request_id = admitted.request_id
        self.served[request_id] = {"prompt_tokens": 10, "generated_tokens": 20, "outcome": "length"}
        one = Received(Kind.WHOLE, 20, sent_at=0, status=200, request_id=request_id, usage=dict(TOLD))
        self.received.append(one)
        return request_id

    def writes(self, *records: Admitted | Settled | Progress) -> None:
        journals.append(self.journal, b"".join(pack(encode(record)) for record in records))

    def records(self, admitted: Admitted, end: Settled) -> None:
        classes = {name: getattr(end.usage, name) for name in ("input", "input_cached", "output")}
        self.books.events[admitted.request_id] = {
            "request_id": admitted.request_id,
            "outcome": end.outcome.value,
            "usage_source": end.usage_source.value,
            "unknown_bound": None,
            "cost": price_of(TOLD),
            "payload_hash": digest(encode(admitted)) + digest(encode(end)),
            **classes,
            **{f"billed_{name}": count for name, count in classes.items()},
        }

    def changes(self, request_id: str, **fields: Any) -> None:
        """Its event says something else."""
        self.books.events[request_id] = {**self.books.events[request_id], **fields}

    def counts(self) -> dict[str, int]:
        """What the audit finds, but for zeros."""
        self.books.journals.read_on()
        compared: Counter[str] = Counter()
        found = [
            *of_clients(self.received, self.books, compared),
            *of_journals(self.books, compared),
            *of_engine(self.served, self.books, compared, deaths_ms=self.deaths_ms),
        ]
        return {wrong: count for wrong, count in tally(found).items() if count}


@pytest.fixture
def case(tmp_path: Path) -> Case:
    case = Case(tmp_path)
    for _ in range(3):
        case.happens()
    return case


def test_what_is_right_counts_as_nothing(case: Case) -> None:
    assert case.counts() == {}


def test_a_request_without_its_event_counts_as_one_missing_whoever_knows_of_it(case: Case) -> None:
    del case.books.events[case.happens()]
    assert case.counts() == {Wrong.MISSING: 1}


def test_a_second_settlement_counts_as_duplicated(case: Case) -> None:
    admitted = SOMEONE.admitted()
    end = settled(admitted, USED)
    case.writes(admitted, end, end)
    case.records(admitted, end)
    assert case.counts() == {Wrong.DUPLICATED: 1}


def test_an_event_that_nobody_admitted_counts_as_duplicated(case: Case) -> None:
    admitted = SOMEONE.admitted()
    case.records(admitted, settled(admitted, USED))
    assert case.counts() == {Wrong.DUPLICATED: 1}


@pytest.mark.parametrize("output", [19, 21])
def test_a_token_more_or_less_than_told_counts_as_mismatched(case: Case, output: int) -> None:
    case.changes(case.happens(), output=output, billed_output=output)
    assert case.counts() == {Wrong.MISMATCHED_TOKENS: 1}


def test_a_pico_more_counts_as_mismatched(case: Case) -> None:
    case.changes(case.happens(), cost=price_of(TOLD) + 1)
    assert case.counts() == {Wrong.MISMATCHED_PICOS: 1}


def test_more_than_the_engine_did_counts_as_mismatched_even_without_a_client(case: Case) -> None:
    case.served[case.happens()]["generated_tokens"] = 7
    case.received.clear()
    assert case.counts() == {Wrong.MISMATCHED_TOKENS: 1}


def test_a_complete_answer_that_counts_as_lost_is_missing(case: Case) -> None:
    case.changes(case.happens(), outcome="lost")
    assert case.counts() == {Wrong.MISSING: 1}


def test_less_than_a_client_saw_before_it_left_counts_as_mismatched(case: Case) -> None:
    case.happens()
    case.received[-1] = Received(
        Kind.HUNG_UP,
        90,
        sent_at=0,
        status=200,
        request_id=case.received[-1].request_id,
        left=True,
        tokens=21,
    )
    assert case.counts() == {Wrong.MISMATCHED_TOKENS: 1}


def test_a_lost_request_that_costs_or_forgot_its_progress_counts_as_mismatched(case: Case) -> None:
    admitted = SOMEONE.admitted()
    reading = Reading(admitted.request_id, ids.BackendId("bck_one"), Usage(input=10, output=5), 99)
    case.writes(admitted, Progress(at_ms=0, readings=(reading,)))
    case.records(admitted, settled(admitted, USED))
    case.changes(admitted.request_id, outcome="lost", cost=7)
    assert case.counts() == {Wrong.MISMATCHED_TOKENS: 1, Wrong.MISMATCHED_PICOS: 1}


def test_an_engine_may_know_a_request_whose_gateway_died_before_it_was_written(case: Case) -> None:
    request_id = ids.request_id()
    case.served[request_id] = {"prompt_tokens": 10, "generated_tokens": 0, "outcome": "abort"}
    assert case.counts() == {Wrong.MISSING: 1}
    case.deaths_ms.append(ids.created_ms(request_id) + 100)
    assert case.counts() == {}


@pytest.fixture
async def shop(database: Database, tmp_path: Path) -> AsyncIterator[Shop]:
    """A shop whose settler has posted a dead gateway's journal."""
    async with open_shop(database) as shop:
        dead = await shop.incarnation()
        admitted = [shop.catalogue.admitted() for _ in range(3)]
        records = [record for one in admitted for record in (one, settled(one))]
        lock.path_of(tmp_path, dead).write_bytes(b"".join(journals.frames(dead, records)))
        settler = Settler(shop.engine, folder=tmp_path, clock=shop.clock)
        await settler.look()
        settler.close()
        yield shop


FORGERIES = {
    "usage_rollup SET requests = requests + 1": {Wrong.DUPLICATED},
    "usage_rollup SET requests = requests - 1": {Wrong.MISSING},
    "usage_rollup SET output = output + 1": {Wrong.MISMATCHED_TOKENS},
    "usage_rollup SET cost = cost + 1": {Wrong.MISMATCHED_PICOS},
    "ledger_entry SET amount = amount * 2": {Wrong.MISMATCHED_PICOS},
    "lease SET granted = granted + 1": {Wrong.HOLDS_LEFT_OPEN},
    "allowance SET spent = limit_amount + 1": {Wrong.NEGATIVE_BALANCES, Wrong.MISMATCHED_PICOS},
}


async def _found(connection: asyncpg.Connection) -> set[Wrong]:
    return {finding.wrong async for finding in of_database(connection)}


async def _found_after(connection: asyncpg.Connection, change: str) -> set[Wrong]:
    """What is found once history was changed, which is undone again."""
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute(f"ALTER TABLE {change.partition(' ')[0]} DISABLE TRIGGER USER")
    await connection.execute(f"UPDATE {change}")
    try:
        return await _found(connection)
    finally:
        await transaction.rollback()


async def test_what_is_forged_in_a_database_is_found_in_its_class_and_nothing_before(shop: Shop) -> None:
    connection = await asyncpg.connect(shop.database.owner_url)
    try:
        assert await connection.fetchval("SELECT count(*) FROM usage_event") == 3
        assert await _found(connection) == set()
        assert {change: await _found_after(connection, change) for change in FORGERIES} == FORGERIES
    finally:
        await connection.close()
