"""What is left of a run when all is settled: journals, events, roll-ups, ledger, wallets, leases."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from billing.journal.frames import unpack
from billing.journal.model import Admitted, Progress, Reading, Record, Settled, decode
from billing.metering.model import Usage

if TYPE_CHECKING:
    from tests.simulation.world import World

CLASSES = ("input", "input_cached", "input_cache_write", "output")
_ROLLED = ("input", "input_cached", "input_cache_write", "output", "billed_input", "billed_output", "cost")


@dataclass
class Evidence:
    """Records by request id; rows as the database has them."""

    admitted: dict[str, list[Admitted]] = field(default_factory=lambda: defaultdict(list))
    settled: dict[str, list[Settled]] = field(default_factory=lambda: defaultdict(list))
    furthest: dict[str, Reading] = field(default_factory=dict)
    events: dict[str, dict[str, Any]] = field(default_factory=dict)
    refusals: dict[str, dict[str, Any]] = field(default_factory=dict)
    rates: dict[str, dict[str, int]] = field(default_factory=dict)
    in_force: dict[str, tuple[int, int | None]] = field(default_factory=dict)


def gather(world: World) -> Evidence:
    """Read all of it."""
    evidence = Evidence()
    _read_journals(world, evidence)
    fetch = world.arena.fetch
    for row in fetch("SELECT * FROM usage_event"):
        evidence.events[row["request_id"]] = dict(row)
    for row in fetch("SELECT * FROM refusal"):
        evidence.refusals[row["request_id"]] = dict(row)
    for row in fetch("SELECT price_version_id, meter, micros_per_mtok FROM price"):
        evidence.rates.setdefault(row["price_version_id"], {})[row["meter"]] = int(row["micros_per_mtok"])
    for row in fetch("SELECT id, effective_from, effective_to FROM price_version WHERE status = 'published'"):
        start, end = row["effective_from"], row["effective_to"]
        evidence.in_force[row["id"]] = (_ms(start), None if end is None else _ms(end))
    return evidence


def usage_of(event: dict[str, Any]) -> Usage:
    return Usage(*(event[name] for name in CLASSES))


def billed_of(event: dict[str, Any]) -> Usage:
    return Usage(*(event[f"billed_{name}"] for name in CLASSES))


def rates_of(event: dict[str, Any]) -> dict[str, int]:
    return {name: int(price) for name, price in json.loads(event["rates"]).items()}


def unrolled(world: World) -> list[str]:
    """Tenants whose roll-ups are not the sums of their events, by bucket."""
    sums = ", ".join(f"sum({name})" for name in _ROLLED)
    query = f"""
    WITH e AS (SELECT tenant_id, date_bin('15 minutes', admitted_at, 'epoch') AS bucket,
        price_version_id AS v, usage_source AS s, count(*) AS n, {sums} FROM usage_event GROUP BY 1, 2, 3, 4),
      r AS (SELECT tenant_id, bucket, price_version_id AS v, usage_source AS s, sum(requests) AS n, {sums}
        FROM usage_rollup WHERE usage_source <> 'correction' GROUP BY 1, 2, 3, 4)
    SELECT tenant_id, bucket FROM ((TABLE e EXCEPT TABLE r) UNION ALL (TABLE r EXCEPT TABLE e)) AS d
    """
    return [f"{row['tenant_id'][-6:]} at {row['bucket']}" for row in world.arena.fetch(query)]


def _read_journals(world: World, evidence: Evidence) -> None:
    journals = {path.name: path for path in sorted(world.disk.folder.rglob("*.journal"))}
    for path in journals.values():
        for frame in unpack(path.read_bytes(), offset=0)[0]:
            _note(decode(frame.payload), evidence)


def _note(record: Record, evidence: Evidence) -> None:
    match record:
        case Admitted():
            evidence.admitted[record.request_id].append(record)
        case Settled():
            evidence.settled[record.request_id].append(record)
        case Progress():
            evidence.furthest |= {reading.request_id: reading for reading in record.readings}


def _ms(moment: Any) -> int:
    return int(moment.timestamp() * 1000)
