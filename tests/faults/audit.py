"""The proof that nothing is lost and nothing counted twice: clients, engine, journals and books compared.

Each check names what is wrong in words. What is only late goes away by itself, what is wrong stays: so
the books are asked again until nothing is found, and a test shows what was found last.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from app.core.ids import created_ms
from app.core.money import parse_picos, parse_price
from app.stack.demo import PRICES
from billing.journal.frames import unpack
from billing.journal.model import Admitted, Settled, decode
from tests.faults.client import Received
from tests.faults.stack import GATEWAYS, Stack, until

PICOS_PER_TOKEN = {meter: parse_price(price) for meter, price in PRICES.items()}
"""Micros per million tokens are picos per token."""
UNWRITTEN_MS = 500
"""Longest time from a request's id to the end of that turn of the gateway's loop, on a busy machine."""
STAYS_ZERO = (
    "steelyard_gateway_invariant_total",
    "steelyard_settlements_not_durable_total",
    "steelyard_overruns_total",
    "steelyard_settler_conflicts_total",
    "steelyard_settler_parked_total",
    "steelyard_settler_parked_open",
    "steelyard_settler_stopped_journals",
    "steelyard_settler_uncovered_picos",
    "steelyard_settler_unleased_posts_total",
)
_EMPTY = {
    "a settlement that contradicts another": "SELECT request_id FROM usage_conflict",
    "a record set aside": "SELECT request_id || ': ' || reason FROM parked_record",
    "a ledger that does not sum to zero": """
        SELECT a.currency || ' ' || sum(e.amount)
        FROM ledger_entry e JOIN ledger_account a ON a.id = e.account_id
        GROUP BY a.currency HAVING sum(e.amount) <> 0""",
    "a transaction that does not sum to zero": """
        SELECT transaction_id FROM ledger_entry GROUP BY transaction_id HAVING sum(amount) <> 0""",
    "a wallet whose balance is told in different ways (grants - costs, ledger, allowance)": """
        SELECT format('%s: %s, %s, %s', id, granted - cost, ledger, allowance) FROM (
          SELECT w.id, a.limit_amount - w.credit_limit - a.spent AS allowance,
            coalesce((SELECT sum(amount) FROM wallet_grant g WHERE g.wallet_id = w.id), 0) AS granted,
            coalesce((SELECT sum(cost) FROM usage_event u WHERE u.tenant_id = w.tenant_id), 0) AS cost,
            coalesce((SELECT sum(e.amount) FROM ledger_entry e JOIN ledger_account c ON c.id = e.account_id
              WHERE c.tenant_id = w.tenant_id AND c.kind = 'wallet'), 0) AS ledger
          FROM wallet w JOIN allowance a ON a.id = w.allowance_id) told
        WHERE granted - cost <> ledger OR ledger <> allowance""",
    "a closed incarnation that still has a lease": """
        SELECT incarnation_id FROM lease l JOIN incarnation i ON i.id = l.incarnation_id
        WHERE i.status = 'closed' AND granted - settled - returned <> 0""",
    "use that no lease covered": "SELECT incarnation_id FROM lease WHERE uncovered <> 0",
    "an allowance that is spent or lent beyond its limit": """
        SELECT id || ' by ' || -quota_available(id) FROM allowance WHERE quota_available(id) < 0""",
    "an allowance whose spending is not what leases settled": """
        SELECT a.id FROM allowance a WHERE a.spent - a.unleased <>
          coalesce((SELECT sum(settled) FROM lease l WHERE l.allowance_id = a.id), 0)""",
    "roll-ups that are not the sum of their events": """
        SELECT format('%s <> %s', r.sums, e.sums) FROM
          (SELECT (sum(requests), sum(input), sum(output), sum(billed_output), sum(cost))::text AS sums
           FROM usage_rollup) r,
          (SELECT (count(*), sum(input), sum(output), sum(billed_output), sum(cost))::text AS sums
           FROM usage_event) e
        WHERE r.sums <> e.sums""",
    "a charge without its transaction": """
        SELECT u.request_id FROM usage_event u LEFT JOIN ledger_transaction t ON t.id = u.transaction_id
        WHERE u.cost > 0 AND t.id IS NULL""",
}
"""What the database must not hold: a query for each that finds it."""


@dataclass
class Books:
    """What is written down.   events: by request id.   admitted, settled: as often as a journal says so."""

    events: dict[str, asyncpg.Record]
    admitted: Counter[str] = field(default_factory=Counter)
    settled: dict[str, list[Settled]] = field(default_factory=dict)


async def assert_books_are_true(stack: Stack, received: Iterable[Received]) -> Books:
    """The books, once all is posted and every check passes. Fails with what is still wrong then."""
    received = list(received)
    wrong: list[str] = []

    async def look() -> Books | None:
        async with connected(stack) as database:
            books = await _read_books(stack, database)
            wrong[:] = [
                *_clients(stack, received, books),
                *_journals(books),
                *_engine(stack, books),
                *[finding async for finding in _database(database)],
                *[finding async for finding in _processes(stack, database)],
            ]
        return None if wrong else books

    await stack.engine.gather()
    try:
        books = await until(look)
    except AssertionError:
        raise AssertionError("\n".join([f"{len(wrong)} findings:", *wrong[:30]])) from None
    await _control_api_agrees(stack, books)
    return books


@asynccontextmanager
async def connected(stack: Stack) -> AsyncIterator[asyncpg.Connection]:
    """The database as its owner, one snapshot for all that is read."""
    connection = await asyncpg.connect(stack.owner_url)
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            yield connection
    finally:
        await connection.close()


def price_of(usage: dict[str, Any]) -> int:
    """The picos that OpenAI's `usage` object costs at the demo's prices."""
    return sum(tokens * PICOS_PER_TOKEN[name] for name, tokens in classes_of(usage).items())


def classes_of(usage: dict[str, Any]) -> dict[str, int]:
    """OpenAI's `usage` object as disjoint classes."""
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return {
        "input": usage["prompt_tokens"] - cached,
        "input_cached": cached,
        "output": usage["completion_tokens"],
    }


async def _read_books(stack: Stack, database: asyncpg.Connection) -> Books:
    rows = await database.fetch("SELECT * FROM usage_event")
    books = Books({row["request_id"]: row for row in rows})
    for path in _journal_files(stack.data.journal):
        for frame in unpack(path.read_bytes(), offset=0)[0]:
            match decode(frame.payload):
                case Admitted(request_id=request_id):
                    books.admitted[request_id] += 1
                case Settled() as settled:
                    books.settled.setdefault(settled.request_id, []).append(settled)
    return books


def _journal_files(folder: Path) -> list[Path]:
    """Every journal there ever was: of the living, and of the dead that were posted."""
    return sorted([*folder.glob("*.journal"), *folder.glob("closed/*.journal")])


def _clients(stack: Stack, received: Iterable[Received], books: Books) -> Iterator[str]:
    for one in received:
        event = books.events.get(one.request_id or "")
        if not one.ended_visibly:
            yield f"an answer that just stopped: {one}"
        if one.complete:
            yield from _complete(one, event)
        elif one.status == 200 and event is None:
            yield f"an answer that began and was never recorded: {one}"


def _complete(one: Received, event: asyncpg.Record | None) -> Iterator[str]:
    """What a client received to its end is billed, as it was told."""
    if event is None:
        yield f"a complete answer that was not recorded: {one}"
        return
    if event["outcome"] != "completed" or event["usage_source"] != "engine":
        yield f"a complete answer recorded as {event['outcome']} by {event['usage_source']}: {one}"
    if event["output"] != one.max_tokens:
        yield f"{one.request_id}: {event['output']} tokens recorded of an answer of {one.max_tokens}"
    if one.usage is None:
        return
    told = classes_of(one.usage)
    recorded = {name: event[name] for name in told}
    if recorded != told or recorded != {name: event[f"billed_{name}"] for name in told}:
        yield f"{one.request_id}: the client was told {told}, recorded is {recorded}"
    if int(event["cost"]) != price_of(one.usage):
        yield f"{one.request_id}: costs {event['cost']}, its usage costs {price_of(one.usage)}"


def _journals(books: Books) -> Iterator[str]:
    for request_id, times in books.admitted.items():
        settled = books.settled.get(request_id, [])
        event = books.events.get(request_id)
        if times != 1 or len(settled) > 1:
            yield f"{request_id}: admitted {times} times, settled {len(settled)} times"
        if event is None:
            yield f"{request_id}: admitted and not recorded"
        elif not settled and event["outcome"] != "lost":
            yield f"{request_id}: recorded as {event['outcome']}, but its process never settled it"
        elif settled and not _same(settled[0], event):
            yield f"{request_id}: journalled as {settled[0]}, recorded as {dict(event)}"
    for request_id in books.events.keys() - books.admitted.keys():
        yield f"{request_id}: recorded, but never admitted"
    for request_id in books.settled.keys() - books.admitted.keys():
        yield f"{request_id}: settled, but never admitted"


def _same(settled: Settled, event: asyncpg.Record) -> bool:
    usage = (settled.usage.input, settled.usage.input_cached, settled.usage.output)
    return (
        usage == (event["input"], event["input_cached"], event["output"])
        and settled.cost_picos == int(event["cost"])
        and settled.outcome.value == event["outcome"]
    )


def _engine(stack: Stack, books: Books) -> Iterator[str]:
    """What an engine worked on is recorded: to the token where it told, else never as more than it did."""
    for request_id, served in stack.engine.served.items():
        event = books.events.get(request_id)
        if event is None:
            if not _died_unwritten(stack, request_id):
                yield f"{request_id}: an engine worked on it, and it was never recorded"
        elif served["outcome"] != "running":  # else killed under it: nobody knows how far it came
            yield from _compared(event, served)


def _compared(event: asyncpg.Record, served: dict[str, Any]) -> Iterator[str]:
    told = f"{event['request_id']}: {event['outcome']} by {event['usage_source']}"
    recorded = (event["input"], event["output"])
    worked = (served["prompt_tokens"], served["generated_tokens"])
    if event["usage_source"] == "engine" and recorded != worked:
        yield f"{told}: recorded {recorded}, its engine worked on {worked}"
    if recorded[0] > worked[0] or recorded[1] > worked[1]:
        yield f"{told}: recorded {recorded} is more than the {worked} of its engine"
    if event["unknown_bound"] is not None:
        bound = json.loads(event["unknown_bound"])
        if bound["input"] < worked[0] or bound["output"] < worked[1]:
            yield f"{told}: the bound {bound} of what nobody told is below the {worked} of its engine"


def _died_unwritten(stack: Stack, request_id: str) -> bool:
    """True if a gateway was killed in the very turn of its loop that sent this request to an engine.

    That turn's admissions are written at its end. Nobody can have seen a byte of the answer by then, the
    engine aborts with the connection, nothing is held, and nothing is billed.
    """
    begun_ms = created_ms(request_id)
    return any(0 <= death_ms - begun_ms <= UNWRITTEN_MS for death_ms in stack.deaths_ms)


async def _database(database: asyncpg.Connection) -> AsyncIterator[str]:
    for what, query in _EMPTY.items():
        for row in await database.fetch(query):
            yield f"{what}: {row[0]}"


async def _processes(stack: Stack, database: asyncpg.Connection) -> AsyncIterator[str]:
    """Only gateways that serve are open; nobody counted what can't happen; no journal is set aside."""
    serving = {await stack.incarnation(name) for name in GATEWAYS}
    rows = await database.fetch("SELECT id FROM incarnation WHERE status = 'open'")
    if (open_now := {row["id"] for row in rows}) != serving:
        yield f"open incarnations {sorted(open_now)}, serving {serving}"
    if any(stack.data.journal.glob("quarantine/*")):
        yield "a journal in quarantine"
    for name in stack.metrics_ports():
        samples = await stack.metrics(name)
        if not samples:
            yield f"{name} does not answer"
        for sample, value in samples.items():
            if value and sample.partition("{")[0] in STAYS_ZERO:
                yield f"{name}: {sample} is {value}"


async def _control_api_agrees(stack: Stack, books: Books) -> None:
    """The control API tells the same sums as the events."""
    tenant_id = stack.credentials().tenant_id
    mine = [event for event in books.events.values() if event["tenant_id"] == tenant_id]
    async with stack.control() as control:
        wallet = (await control.get(f"/tenants/{tenant_id}/wallet")).json()
        grants = (await control.get(f"/wallets/{wallet['id']}/grants")).json()["data"]
    granted = sum(parse_picos(grant["amount"]) for grant in grants)
    assert parse_picos(wallet["posted"]) == granted - sum(int(event["cost"]) for event in mine)
