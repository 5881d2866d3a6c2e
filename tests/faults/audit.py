"""The proof that nothing is lost and nothing counted twice: clients, engine, journals and books compared.

Each comparison yields what is wrong with which request, wallet or lease, in a class of its own: so the
figures are counts of what was found, by evidence from four sides. What is only late goes away by itself,
what is wrong stays: so the books are asked again until nothing is found, and what was found last is told.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import httpx

from app.core.ids import created_ms
from app.core.money import parse_picos, parse_price
from app.stack.demo import PRICES
from billing.journal.model import Settled
from tests.faults.books import Books, Event, connected, of_database
from tests.faults.client import Received
from tests.faults.finding import Finding, Wrong
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
IDLE = ("steelyard_requests_in_flight", "steelyard_leases_holding")
"""What is zero in a gateway that serves nobody."""


@dataclass
class Examination:
    """What one look found, and at how many things it looked."""

    findings: list[Finding] = field(default_factory=list)
    compared: Counter[str] = field(default_factory=Counter)


async def assert_books_are_true(stack: Stack, received: Iterable[Received]) -> Books:
    """The books, once all is posted and every check passes. Fails with what is still wrong then."""
    books = Books(stack.journals)
    found = await examine(stack, books, received=list(received), within_s=60)
    assert not found.findings, "\n".join([f"{len(found.findings)} findings:", *map(str, found.findings[:30])])
    return books


async def examine(stack: Stack, books: Books, *, received: list[Received], within_s: float) -> Examination:
    """The first look that finds nothing wrong, or the last one when the time is over.

    received: every request whose client is ours.   books: read on.
    """
    found = Examination()

    async def look() -> bool:
        nonlocal found
        found = Examination()
        async with connected(stack) as database:
            await books.read_on(database)
            found.findings += [
                *of_clients(received, books, found.compared),
                *of_journals(books, found.compared),
                *of_engine(stack.engine.served, books, found.compared, deaths_ms=stack.deaths_ms),
                *[finding async for finding in of_database(database)],
                *[finding async for finding in of_processes(stack, database, found.compared)],
            ]
        if not found.findings:
            found.findings += [finding async for finding in of_control_api(stack, books)]
        return not found.findings

    await stack.engine.gather()
    try:
        await until(look, within_s=within_s)
    except (AssertionError, OSError, asyncpg.PostgresError) as error:
        if not found.findings:
            found.findings.append(Finding(Wrong.OTHER, "database", repr(error)))
    return found


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


def of_clients(received: Iterable[Received], books: Books, compared: Counter[str]) -> Iterator[Finding]:
    """What clients received is recorded: to its end as they were told, else never as less than they saw."""
    for one in received:
        event = books.events.get(one.request_id or "")
        subject = one.request_id or f"{one.kind} sent at {one.sent_at:.3f}"
        if not one.ended_visibly:
            yield Finding(Wrong.OTHER, subject, f"an answer that just stops: {one}")
        if event is None:
            if one.status == 200:
                yield Finding(Wrong.MISSING, subject, f"an answer that was never recorded: {one}")
            continue
        compared["clients"] += 1
        if one.complete:
            yield from _complete(one, event)
        elif one.left and event["usage_source"].startswith("engine") and event["output"] < one.tokens:
            words = f"{event['output']} tokens recorded, {one.tokens} received until it left"
            yield Finding(Wrong.MISMATCHED_TOKENS, subject, words)


def _complete(one: Received, event: Event) -> Iterator[Finding]:
    """What a client received to its end is billed, as it was told."""
    subject = event["request_id"]
    if event["outcome"] != "completed" or event["usage_source"] != "engine":
        words = f"complete, but recorded as {event['outcome']} by {event['usage_source']}: {one}"
        yield Finding(Wrong.MISSING, subject, words)
    if event["output"] != one.max_tokens * one.choices:
        words = f"{event['output']} tokens recorded of {one.choices} answers of {one.max_tokens}"
        yield Finding(Wrong.MISMATCHED_TOKENS, subject, words)
    if one.usage is None:
        return
    told = classes_of(one.usage)
    recorded = {name: event[name] for name in told}
    if recorded != told or recorded != {name: event[f"billed_{name}"] for name in told}:
        yield Finding(Wrong.MISMATCHED_TOKENS, subject, f"told were {told}, recorded {recorded}")
    if int(event["cost"]) != price_of(one.usage):
        words = f"costs {event['cost']}, its usage costs {price_of(one.usage)}"
        yield Finding(Wrong.MISMATCHED_PICOS, subject, words)


def of_journals(books: Books, compared: Counter[str]) -> Iterator[Finding]:
    """Each admission in a journal has one event, which says what the journal says, and no event lacks one."""
    journals = books.journals
    for request_id, times in journals.admitted.items():
        settled = journals.settled.get(request_id, [])
        event = books.events.get(request_id)
        if times != 1 or len(settled) > 1:
            words = f"admitted {times} times, settled {len(settled)} times"
            yield Finding(Wrong.DUPLICATED, request_id, words)
        if event is None:
            yield Finding(Wrong.MISSING, request_id, "admitted and not recorded")
            continue
        compared["journal_records"] += 1
        if event["payload_hash"][:32] != journals.admitted_hash[request_id]:
            yield Finding(Wrong.OTHER, request_id, "recorded with another admission than journalled")
        yield from _journalled(event, settled) if settled else _unsettled(event, books)
    for request_id in (books.events.keys() | journals.settled.keys()) - journals.admitted.keys():
        yield Finding(Wrong.DUPLICATED, request_id, "recorded or settled, but never admitted")


def _journalled(event: Event, settled: list[tuple[Settled, bytes]]) -> Iterator[Finding]:
    """An event says what the journal's settlement says."""
    record, record_hash = settled[0]
    usage = (record.usage.input, record.usage.input_cached, record.usage.output)
    if usage != (event["input"], event["input_cached"], event["output"]):
        yield Finding(Wrong.MISMATCHED_TOKENS, event["request_id"], f"journalled as {record.usage}")
    if record.cost_picos != int(event["cost"]):
        words = f"costs {event['cost']}, journalled as {record.cost_picos}"
        yield Finding(Wrong.MISMATCHED_PICOS, event["request_id"], words)
    if record.outcome.value != event["outcome"]:
        words = f"recorded as {event['outcome']}, journalled as {record.outcome}"
        yield Finding(Wrong.MISSING, event["request_id"], words)
    if event["payload_hash"][32:] != record_hash:
        yield Finding(Wrong.OTHER, event["request_id"], "recorded with another settlement than journalled")


def _unsettled(event: Event, books: Books) -> Iterator[Finding]:
    """What its process never settled is lost, as far as its last progress went, and free of charge."""
    request_id = event["request_id"]
    if event["outcome"] != "lost":
        words = f"recorded as {event['outcome']}, but its process never settled it"
        yield Finding(Wrong.DUPLICATED, request_id, words)
    if event["cost"]:
        yield Finding(Wrong.MISMATCHED_PICOS, request_id, f"lost, and costs {event['cost']}")
    furthest = books.journals.furthest.get(request_id)
    told = furthest.usage.output if furthest and furthest.usage else 0
    if event["output"] != told:
        words = f"lost at {event['output']} tokens, its last progress told {told}"
        yield Finding(Wrong.MISMATCHED_TOKENS, request_id, words)


def of_engine(
    counts: Mapping[str, dict[str, Any]], books: Books, compared: Counter[str], *, deaths_ms: Sequence[int]
) -> Iterator[Finding]:
    """What an engine worked on is recorded: to the token where it told, else never as more than it did."""
    for request_id, served in counts.items():
        event = books.events.get(request_id)
        if event is None:
            if not _died_unwritten(request_id, deaths_ms):
                yield Finding(Wrong.MISSING, request_id, "an engine worked on it, and it was never recorded")
        elif served["outcome"] != "running":  # else killed under it: nobody knows how far it came
            compared["engine_records"] += 1
            yield from _compared(event, served)


def _compared(event: Event, served: dict[str, Any]) -> Iterator[Finding]:
    told = f"{event['outcome']} by {event['usage_source']}"
    recorded = (event["input"] + event["input_cached"], event["output"])
    worked = (served["prompt_tokens"], served["generated_tokens"])
    wrong = Wrong.MISMATCHED_TOKENS
    if event["usage_source"] == "engine" and recorded != worked:
        words = f"{told}: recorded {recorded}, its engine worked on {worked}"
        yield Finding(wrong, event["request_id"], words)
    if recorded[0] > worked[0] or recorded[1] > worked[1]:
        words = f"{told}: recorded {recorded} is more than the {worked} of its engine"
        yield Finding(wrong, event["request_id"], words)
    if event["unknown_bound"] is not None:
        bound = json.loads(event["unknown_bound"])
        if bound["input"] < worked[0] or bound["output"] < worked[1]:
            words = f"{told}: the bound {bound} of what nobody told is below the {worked} of its engine"
            yield Finding(wrong, event["request_id"], words)


def _died_unwritten(request_id: str, deaths_ms: Sequence[int]) -> bool:
    """True if a gateway was killed in the very turn of its loop that sent this request to an engine.

    That turn's admissions are written at its end. Nobody can have seen a byte of the answer by then, the
    engine aborts with the connection, nothing is held, and nothing is billed.
    """
    begun_ms = created_ms(request_id)
    return any(0 <= death_ms - begun_ms <= UNWRITTEN_MS for death_ms in deaths_ms)


async def of_processes(
    stack: Stack, database: asyncpg.Connection, compared: Counter[str]
) -> AsyncIterator[Finding]:
    """Only gateways that serve have leases, and hold nothing; no counter tells of what can't happen."""
    serving = {await stack.incarnation(name) for name in GATEWAYS}
    for row in await database.fetch("SELECT id FROM incarnation WHERE status = 'open'"):
        if row["id"] not in serving:
            yield Finding(Wrong.HOLDS_LEFT_OPEN, row["id"], "open, and serves no more")
    compared["leases"] = await database.fetchval("SELECT count(*) FROM lease")
    compared["wallets"] = await database.fetchval("SELECT count(*) FROM wallet")
    if any(stack.data.journal.glob("quarantine/*")):
        yield Finding(Wrong.OTHER, "journal", "in quarantine")
    for name in stack.metrics_ports():
        samples = await stack.metrics(name)
        if not samples:
            yield Finding(Wrong.OTHER, name, "does not answer")
        for sample, value in samples.items():
            if value and sample.partition("{")[0] in STAYS_ZERO:
                yield Finding(Wrong.OTHER, name, f"{sample} is {value}")
            if value and sample in IDLE:
                yield Finding(Wrong.HOLDS_LEFT_OPEN, name, f"{sample} is {value}")


async def of_control_api(stack: Stack, books: Books) -> AsyncIterator[Finding]:
    """The control API tells the same sums as the events."""
    tenant_id = stack.credentials().tenant_id
    spent = sum(int(event["cost"]) for event in books.events.values() if event["tenant_id"] == tenant_id)
    try:
        async with stack.control() as control:
            wallet = (await control.get(f"/tenants/{tenant_id}/wallet")).json()
            grants = (await control.get(f"/wallets/{wallet['id']}/grants")).json()["data"]
    except (httpx.HTTPError, KeyError, ValueError) as error:
        yield Finding(Wrong.OTHER, "control", f"does not answer: {error!r}")
        return
    granted = sum(parse_picos(grant["amount"]) for grant in grants)
    if parse_picos(wallet["posted"]) != granted - spent:
        words = f"the API tells {wallet['posted']}, granted were {granted}, spent {spent} picos"
        yield Finding(Wrong.MISMATCHED_PICOS, wallet["id"], words)
