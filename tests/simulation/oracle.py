"""Compares what clients received and engines did with every book: counts what does not agree.

Nothing here asks the code under test what is right. The truth is the scripted world's own: bytes that a
client has, tokens in the last piece that a gateway read, the price that was published.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.simulation.allowances import judge_allowances
from tests.simulation.books import prove_books
from tests.simulation.client import Call
from tests.simulation.engine import Work
from tests.simulation.evidence import Evidence, billed_of, gather, rates_of, unrolled, usage_of
from tests.simulation.outcome import Outcome
from tests.simulation.refusals import weigh_refusals
from tests.simulation.wallets import judge_wallets

if TYPE_CHECKING:
    from tests.simulation.world import World

_NEWS_MS = 6000
"""How long a gateway may serve at a price that has ended, because the news did not reach it."""
_PAYS = frozenset({"completed", "client_cancelled", "timed_out"})


def judge(world: World) -> Outcome:
    """The outcome of a run that is over."""
    evidence = gather(world)
    outcome = Outcome(seed=world.plan.seed, digest=world.trace.digest(), requests=len(world.calls))
    outcome.delivered_to_the_end = sum(call.delivered for call in world.calls)
    outcome.settled = len(evidence.events)
    outcome.lost = sum(event["outcome"] == "lost" for event in evidence.events.values())
    outcome.refused = len(evidence.refusals)
    wallets = {payer.allowance_id for payer in world.catalogue.payers}
    outcome.limited = sum(
        row["allowance_id"] is not None and row["allowance_id"] not in wallets
        for row in evidence.refusals.values()
    )
    outcome.deaths = world.deaths
    outcome.over_limit = world.watch.over_limit
    outcome.findings = list(world.findings)
    outcome.other = len(world.findings) - world.watch.over_limit
    for call in world.calls:
        _judge_call(call, evidence, outcome)
    _judge_journals(evidence, outcome)
    for event in evidence.events.values():
        _judge_event(world, event, evidence=evidence, outcome=outcome)
    _judge_engines(world, evidence, outcome)
    _judge_books(world, evidence, outcome)
    judge_allowances(world, evidence, outcome)
    prove_books(world, outcome)
    weigh_refusals(world, evidence, outcome)
    return outcome


def _judge_call(call: Call, evidence: Evidence, outcome: Outcome) -> None:
    """What a client has to its end is recorded, completed, and billed as the client was told."""
    if not call.delivered:
        return
    event = evidence.events.get(call.request_id or "")
    if event is None:
        outcome.found("missing", f"call {call.number} was delivered to its end and has no event")
        return
    if event["outcome"] != "completed":
        outcome.found(
            "missing", f"call {call.number} was delivered to its end, recorded as {event['outcome']}"
        )
    told = call.usage
    if told is None or event["usage_source"] != "engine":
        return
    cached = (told.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    words = (told["prompt_tokens"] - cached, cached, told["completion_tokens"])
    recorded = (event["input"], event["input_cached"], event["output"])
    if words != recorded:
        outcome.found("mismatched_tokens", f"call {call.number} was told {words}, recorded are {recorded}")


def _judge_journals(evidence: Evidence, outcome: Outcome) -> None:
    """One admission, at most one settlement, exactly one event, and that says what the journal says."""
    for request_id, admissions in evidence.admitted.items():
        name, event = request_id[-6:], evidence.events.get(request_id)
        settlements = evidence.settled.get(request_id, [])
        if len(admissions) > 1 or len(settlements) > 1:
            outcome.found(
                "duplicated", f"{name} is {len(admissions)} times admitted, {len(settlements)} settled"
            )
        if event is None:
            outcome.found("missing", f"{name} is in the journal and has no event")
        elif not settlements and event["outcome"] != "lost":
            outcome.found("other", f"{name} is recorded as {event['outcome']}, its process never settled it")
        elif settlements:
            _compare(event, settlements[0], outcome)
    for request_id in evidence.events.keys() - evidence.admitted.keys():
        outcome.found("duplicated", f"{request_id[-6:]} has an event and was never admitted")


def _compare(event: dict[str, Any], settled: Any, outcome: Outcome) -> None:
    name = event["request_id"][-6:]
    if event["outcome"] != settled.outcome.value or event["usage_source"] != settled.usage_source.value:
        outcome.found("other", f"{name} is settled as {settled.outcome}, recorded as {event['outcome']}")
    if (usage_of(event).total, event["output"]) != (settled.usage.total, settled.usage.output):
        outcome.found(
            "mismatched_tokens", f"{name} is settled with {settled.usage}, recorded {usage_of(event)}"
        )
    if int(event["cost"]) != settled.cost_picos:
        outcome.found(
            "mismatched_picos", f"{name} is settled for {settled.cost_picos}, recorded {event['cost']}"
        )


def _judge_event(world: World, event: dict[str, Any], *, evidence: Evidence, outcome: Outcome) -> None:
    """An event's tokens are the engine's, its cost is its billed tokens at the price of its admission."""
    name, request_id = event["request_id"][-6:], event["request_id"]
    works = [work for work in world.engines.works if work.request_id == request_id]
    work = next((each for each in reversed(works) if each.backend == event["backend_id"]), None)
    if flaw := _token_flaw(event, work, evidence):
        outcome.found("mismatched_tokens", f"{name} ({event['outcome']}, {event['usage_source']}): {flaw}")
    billed, usage = billed_of(event), usage_of(event)
    if billed.total and (billed != usage or event["outcome"] not in _PAYS):
        outcome.found("mismatched_picos", f"{name} is {event['outcome']}, and {billed} of {usage} is billed")
    published = evidence.rates[event["price_version_id"]]
    cost = sum(getattr(billed, meter) * price for meter, price in published.items())
    if rates_of(event) != published or int(event["cost"]) != cost:
        outcome.found("mismatched_picos", f"{name} costs {event['cost']}, its version says {cost}")
    _judge_price(world, event, evidence=evidence, outcome=outcome)


def _judge_price(world: World, event: dict[str, Any], *, evidence: Evidence, outcome: Outcome) -> None:
    """In force when the request was admitted, or ended so lately that the news was still on its way."""
    start, end = evidence.in_force[event["price_version_id"]]
    at_ms = int(event["admitted_at"].timestamp() * 1000)
    steady = all(trouble.what != "clock_jump" for trouble in world.plan.troubles)
    if at_ms < start or (steady and end is not None and at_ms >= end + _NEWS_MS):
        outcome.found("mismatched_picos", f"{event['request_id'][-6:]} was admitted outside its price's time")


def _token_flaw(event: dict[str, Any], work: Work | None, evidence: Evidence) -> str | None:
    recorded = (event["input"], event["input_cached"], event["output"])
    source = event["usage_source"]
    if source == "unknown" or work is None:
        if any(recorded):
            return f"{recorded} came from nowhere"
        bound = _bound_of(event)
        if (
            work is not None
            and bound is not None
            and (bound[0] < work.worked[0] or bound[1] < work.worked[1])
        ):
            return f"the bound {bound} is below the {work.worked} that the engine worked"
        return None
    if source == "tokenizer":
        return None
    told = work.told or (0, 0, 0)
    words = (told[0] - told[1], told[1], told[2])
    if event["outcome"] == "lost" and event["request_id"] not in evidence.settled:
        reading = evidence.furthest.get(event["request_id"])
        counted = reading.usage if reading is not None else None
        read = (counted.input, counted.input_cached, counted.output) if counted else (0, 0, 0)
        return None if recorded == read and read[2] <= words[2] else f"recorded {recorded}, last read {read}"
    if event["outcome"] in ("refused_by_engine",) or (not any(recorded) and not work.told):
        return None
    return None if recorded == words else f"recorded {recorded}, the engine said {words}"


def _bound_of(event: dict[str, Any]) -> tuple[int, int] | None:
    """What an unknown usage is at most, (input, output)."""
    if event["unknown_bound"] is None:
        return None
    bound = json.loads(event["unknown_bound"])
    return bound["input"], bound["output"]


def _judge_engines(world: World, evidence: Evidence, outcome: Outcome) -> None:
    """What an engine worked on is recorded, unless its gateway died in that very turn or with its machine."""
    for work in world.engines.works:
        if work.request_id in evidence.events or work.request_id in evidence.admitted:
            continue
        if work.told is not None and not world.deaths:
            outcome.found("missing", f"{work.request_id[-6:]} was worked on and never recorded")
        elif not world.deaths:
            outcome.found("missing", f"{work.request_id[-6:]} was sent to an engine and never recorded")


_EMPTY = {
    "duplicated": (
        "SELECT 'conflict of ' || right(request_id, 6) FROM usage_conflict",
        "SELECT 'two revenues of ' || transaction_id FROM ledger_entry e JOIN ledger_account a ON"
        " a.id = e.account_id WHERE a.kind = 'revenue' GROUP BY transaction_id HAVING count(*) > 1",
    ),
    "mismatched_picos": (
        "SELECT 'a transaction is off: ' || transaction_id FROM ledger_entry GROUP BY transaction_id"
        " HAVING sum(amount) <> 0",
        """SELECT format('transaction %s is %s, its events cost %s', t.id, r.amount, u.cost)
           FROM ledger_transaction t
           JOIN (SELECT e.transaction_id, sum(e.amount) AS amount FROM ledger_entry e
             JOIN ledger_account a ON a.id = e.account_id WHERE a.kind = 'revenue' GROUP BY 1) r
             ON r.transaction_id = t.id
           LEFT JOIN (SELECT transaction_id, sum(cost) AS cost FROM usage_event GROUP BY 1) u
             ON u.transaction_id = t.id
           WHERE t.kind = 'usage' AND u.cost IS DISTINCT FROM r.amount""",
        """SELECT 'a charge without its transaction: ' || right(u.request_id, 6) FROM usage_event u
           LEFT JOIN ledger_transaction t ON t.id = u.transaction_id WHERE u.cost > 0 AND t.id IS NULL""",
        """SELECT format('allowance %s has spent %s, its events cost %s', right(a.id, 6), a.spent, u.cost)
           FROM wallet w JOIN allowance a ON a.id = w.allowance_id CROSS JOIN LATERAL
             (SELECT coalesce(sum(cost), 0) AS cost FROM usage_event e WHERE e.tenant_id = w.tenant_id) u
           WHERE a.spent <> u.cost""",
    ),
    "holds_left_open": (
        """SELECT format('%s of %s is still lent to %s', l.granted - l.settled - l.returned,
             right(l.allowance_id, 6), right(l.incarnation_id, 6))
           FROM lease l WHERE l.granted - l.settled - l.returned <> 0""",
        "SELECT 'incarnation ' || right(id, 6) || ' is still open' FROM incarnation WHERE status = 'open'",
    ),
    "other": ("SELECT 'parked: ' || reason FROM parked_record",),
}


def _judge_books(world: World, evidence: Evidence, outcome: Outcome) -> None:
    fetch = world.arena.fetch
    for count, queries in _EMPTY.items():
        for query in queries:
            for row in fetch(query):
                outcome.found(count, str(row[0]))
    for words in unrolled(world):
        outcome.found("mismatched_picos", f"the roll-ups of {words} are not the sum of their events")
    judge_wallets(world, evidence, outcome)
    if any(world.disk.folder.glob("quarantine/*")):
        outcome.found("other", "a journal is in quarantine")
