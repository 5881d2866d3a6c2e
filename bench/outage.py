"""What ten minutes without PostgreSQL cost the clients of two gateways: nothing that their leases cover.

`make bench-outage` starts a durable PostgreSQL, two gateways, a settler and the engine stand-in as processes.
Demand before the outage makes both gateways borrow; then PostgreSQL is stopped for `--outage-s` while
requests go on at `--rate` a second, streams and JSON in turn, and started again while they go on. At the end
each answer that a client has whole must be an event, each event once, and no lease may be out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import httpx

from app.stack.postgres import APP, DATABASE, OWNER, Postgres
from bench import machine
from migrations import runner
from tests.app.gateway.house import chat
from tests.database import Database
from tests.field.pair import Pair, open_pair, until

RESULTS = Path(__file__).parent / "results"
_BALANCE = 1_000_000 * 10**12
_WARM_CLIENTS = 64
_AFTER_S = 10.0
_SETTLE_S = 60.0
_CHECKS = {
    "duplicated": "SELECT count(*) - count(DISTINCT request_id) FROM usage_event",
    "lost": "SELECT count(*) FROM usage_event WHERE outcome = 'lost'",
    "conflicts": "SELECT count(*) FROM usage_conflict",
    "parked": "SELECT count(*) FROM parked_record",
    "uncovered": "SELECT coalesce(sum(uncovered), 0)::bigint FROM lease",
    "mismatched_picos": """SELECT count(*) FROM wallet w JOIN allowance a ON a.id = w.allowance_id
      WHERE a.spent <> (SELECT coalesce(sum(cost), 0) FROM usage_event e WHERE e.tenant_id = w.tenant_id)""",
}


@dataclass
class Tally:
    """What clients saw.   delivered: ids of whole answers.   statuses: of all answers, by phase."""

    delivered: set[str] = field(default_factory=set)
    statuses: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, phase: str, answer: httpx.Response) -> None:
        word = "200" if answer.is_success else f"{answer.status_code} {answer.json()['error']['code']}"
        self.statuses.setdefault(phase, Counter())[word] += 1
        if answer.is_success and (b"[DONE]" in answer.content or b'"usage"' in answer.content):
            self.delivered.add(answer.headers["x-request-id"])


async def load(pair: Pair, tally: Tally, *, phase: str, rate: float, seconds: float) -> None:
    """Ask at a steady rate, whatever becomes of each request; returns when all are answered."""

    async def ask(number: int) -> None:
        tally.add(phase, await pair.ask(number % 2, chat(f"request {number}", stream=number % 4 < 2)))

    begun, number = time.monotonic(), 0
    async with asyncio.TaskGroup() as group:
        while (due := number / rate) < seconds:
            await asyncio.sleep(max(0.0, begun + due - time.monotonic()))
            group.create_task(ask(number))
            number += 1
            if number % round(rate * 10) == 0 and sys.stderr.isatty():
                print(f"\r{phase}: {due:.0f} of {seconds:.0f} s", end="", file=sys.stderr)


async def warm(pair: Pair, tally: Tally) -> None:
    """Demand by which both gateways borrow far more than they will use."""
    async with asyncio.TaskGroup() as group:
        for number in range(_WARM_CLIENTS):
            group.create_task(_warm_one(pair, tally, which=number % 2))


async def _warm_one(pair: Pair, tally: Tally, *, which: int) -> None:
    for _ in range(3):
        tally.add("before", await pair.ask(which, chat("warm", max_tokens=64)))


async def examine(database: Database, tally: Tally) -> dict[str, int]:
    """The books, once every delivered request has an event or time is up."""
    connection = await asyncpg.connect(database.owner_url)
    try:

        async def all_posted() -> bool:
            rows = await connection.fetch("SELECT request_id FROM usage_event WHERE outcome = 'completed'")
            return tally.delivered <= {row["request_id"] for row in rows}

        try:
            await until(all_posted, within_s=_SETTLE_S)
        except TimeoutError:
            print("not everything was posted in time", file=sys.stderr)
        rows = await connection.fetch("SELECT request_id FROM usage_event")
        found = {"events": len(rows), "missing": len(tally.delivered - {row["request_id"] for row in rows})}
        return found | {name: int(await connection.fetchval(query)) for name, query in _CHECKS.items()}
    finally:
        await connection.close()


async def measure(folder: Path, *, outage_s: float, rate: float) -> dict[str, Any]:
    """The whole benchmark on a folder of its own."""
    postgres = Postgres(folder / "postgres")
    postgres.start()
    try:
        await asyncio.to_thread(runner.upgrade, postgres.url(DATABASE, role=OWNER))
        database = Database(DATABASE, postgres.url(DATABASE, role=OWNER), postgres.url(DATABASE, role=APP))
        tally = Tally()
        async with open_pair(database, folder, balance=_BALANCE) as pair:
            await warm(pair, tally)
            postgres.stop()
            await load(pair, tally, phase="away", rate=rate, seconds=outage_s)
            postgres.start()
            await load(pair, tally, phase="after", rate=rate, seconds=_AFTER_S)
            books = await examine(database, tally)
    finally:
        postgres.stop()
    return {
        "outage_s": outage_s,
        "rate_per_s": rate,
        "answers": tally.statuses,
        "delivered_to_the_end": len(tally.delivered),
        "books": books,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--outage-s", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=5.0, help="requests a second, over both gateways")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="steelyard-outage-"))
    folder.chmod(0o711)
    try:
        measured = asyncio.run(measure(folder, outage_s=asked.outage_s, rate=asked.rate))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    result = {
        "benchmark": "outage",
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine.describe(),
        **measured,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "outage.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    wrong = {name: number for name, number in measured["books"].items() if name != "events" and number}
    refused = {word for word in measured["answers"]["away"] if word != "200"}
    return 1 if wrong or refused else 0


if __name__ == "__main__":
    sys.exit(main())
