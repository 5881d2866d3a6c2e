"""How fast the settler posts journals, what an event costs, and how soon it is back after an outage.

`make bench-settler` starts a durable PostgreSQL and the settler's own process on throw-away folders, and

1. *catch up*: settles `--count` events that wait in the journals of several incarnations,
2. *sustain*: settles what gateways write at `--sustain-rate` events a second for `--sustain-s`: a little
   more than 100,000 a minute, so that as many can be seen to be posted within any minute,
3. *outage*: stops PostgreSQL for `--outage-s` while they write `--rate` events a second, starts it again
   while they go on, and takes the time until the settler's lag is below two seconds.

Then it proves the books: each event once, roll-ups = events = ledger. CPU is that of the settler, and of
PostgreSQL's whole process tree, as the operating system counts it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import signal
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from app.core.database import connect_engine
from app.stack.postgres import OWNER
from bench import machine
from bench.market import Size
from bench.settler_rig import (
    Rig,
    count,
    is_ready,
    lag_ms,
    one,
    prepare,
    renew,
    settle_all,
    statements,
)
from billing.ledger import proofs

RESULTS = Path(__file__).parent / "results"
_LAG_MS = 2000
_PATIENCE_S = 900.0


async def catch_up(rig: Rig, *, events: int) -> dict[str, Any]:
    """Post what waits in the journals of dead processes."""
    before, waiting = await count(rig), rig.folder / "waiting"
    waiting.mkdir(exist_ok=True)
    rig.finish(rig.write("--count", str(events), folder=waiting))
    rig.start_settler()
    while not await asyncio.to_thread(is_ready):
        await asyncio.sleep(0.1)
    size = sum(path.stat().st_size for path in waiting.glob("*.journal"))
    called, begun, cpu = await statements(rig), time.monotonic(), rig.cpu()
    for path in waiting.glob("*.journal"):
        path.rename(rig.journals / path.name)
    await settle_all(rig, expected=before + events)
    wall_s = time.monotonic() - begun
    used = {name: now - cpu[name] for name, now in rig.cpu().items()}
    calls = await statements(rig) - called
    rig.stop_settler()
    return {
        "events": events,
        "journal_bytes_per_event": round(size / events),
        "wall_s": round(wall_s, 2),
        "events_per_s": round(events / wall_s),
        "settler_cpu_us_per_event": round(used["settler"] * 1e6 / events, 1),
        "postgres_cpu_us_per_event": round(used["postgres"] * 1e6 / events, 1),
        "statements_per_event": round(calls / events, 4),
    }


async def sustain(rig: Rig, *, rate: float, seconds: float) -> dict[str, Any]:
    """Post what is written at a steady rate; how far behind it is."""
    await renew(rig)
    rig.start_settler()
    writers = rig.write("--rate", str(rate))
    await asyncio.sleep(2)
    before, called, begun, cpu = await count(rig), await statements(rig), time.monotonic(), rig.cpu()
    lags: list[tuple[float, int]] = []
    while (now := time.monotonic()) < begun + seconds:
        lag = await asyncio.to_thread(lag_ms)
        lags += [] if lag is None else [(now - begun, lag)]
        await asyncio.sleep(0.1)
    used = {name: now - cpu[name] for name, now in rig.cpu().items()}
    events = await count(rig) - before
    wall_s = time.monotonic() - begun
    calls = await statements(rig) - called
    writers.terminate()
    rig.finish(writers)
    await settle_all(rig, expected=rig.written["settled"])
    rig.stop_settler()
    return {
        "rate_per_s": rate,
        "wall_s": round(wall_s, 1),
        "events": events,
        "events_per_minute": round(events * 60 / wall_s),
        **_told_lags(lags),
        "settler_cpu_us_per_event": round(used["settler"] * 1e6 / events, 1),
        "postgres_cpu_us_per_event": round(used["postgres"] * 1e6 / events, 1),
        "statements_per_event": round(calls / events, 4),
    }


def _told_lags(lags: list[tuple[float, int]]) -> dict[str, Any]:
    """Of lags by their second: the middle, one in a hundred, the most, and the most of each ten seconds."""
    ordered = sorted(lag for _, lag in lags)
    tens: dict[int, int] = {}
    for second, lag in lags:
        tens[int(second // 10)] = max(lag, tens.get(int(second // 10), 0))
    return {
        "lag_p50_ms": ordered[len(ordered) // 2],
        "lag_p99_ms": ordered[len(ordered) * 99 // 100],
        "lag_max_ms": ordered[-1],
        "lag_max_ms_each_10s": list(tens.values()),
    }


async def outage(rig: Rig, *, rate: float, seconds: float) -> dict[str, Any]:
    """Stop PostgreSQL while the gateways go on; the time until the settler is back."""
    await renew(rig)
    rig.start_settler()
    writers = rig.write("--rate", str(rate))
    await asyncio.sleep(2)
    before = await count(rig)
    await asyncio.to_thread(rig.postgres.stop)
    stopped = time.monotonic()
    await asyncio.sleep(seconds)
    await asyncio.to_thread(rig.postgres.start)
    back = time.monotonic()
    while (lag := await asyncio.to_thread(lag_ms)) is None or lag >= _LAG_MS:
        if time.monotonic() - back > _PATIENCE_S:
            raise TimeoutError("the settler does not catch up")
        await asyncio.sleep(0.05)
    caught_up_s = time.monotonic() - back
    events = await count(rig) - before
    writers.terminate()
    rig.finish(writers)
    await settle_all(rig, expected=rig.written["settled"])
    rig.stop_settler()
    return {
        "rate_per_s": rate,
        "outage_s": round(back - stopped, 1),
        "until_lag_below_2s_s": round(caught_up_s, 2),
        "events_posted_then": events,
        "events_per_s_then": round(events / caught_up_s),
    }


_BOOKS = """
SELECT (SELECT count(*) FROM usage_event) AS events,
  (SELECT coalesce(sum(cost), 0) FROM usage_event) AS cost,
  (SELECT coalesce(sum(requests), 0) FROM usage_rollup) AS rolled_up,
  (SELECT coalesce(sum(cost), 0) FROM usage_rollup) AS rolled_up_cost,
  (SELECT coalesce(sum(e.amount), 0) FROM ledger_entry e JOIN ledger_account a ON a.id = e.account_id
    WHERE a.kind = 'revenue') AS revenue,
  (SELECT count(*) FROM (SELECT bucket, tenant_id, project_id, key_id, model_id, price_version_id, currency,
      usage_source, requests, input, input_cached, output, billed_input, billed_output, cost
    FROM usage_rollup EXCEPT
    SELECT date_bin('15 minutes', admitted_at, 'epoch'), tenant_id, project_id, key_id, model_id,
      price_version_id, currency, usage_source, count(*), sum(input), sum(input_cached), sum(output),
      sum(billed_input), sum(billed_output), sum(cost) FROM usage_event GROUP BY 1, 2, 3, 4, 5, 6, 7, 8) d)
    AS wrong_rollups,
  (SELECT count(*) FROM usage_conflict) AS conflicts,
  (SELECT count(*) FROM parked_record) AS parked,
  (SELECT coalesce(sum(uncovered), 0) FROM lease) AS uncovered
"""


async def prove(rig: Rig) -> dict[str, Any]:
    """The books against what the writers wrote. Raises SystemExit if they differ."""
    found = {name: int(value) for name, value in (await one(rig, _BOOKS))._mapping.items()}
    engine = connect_engine(rig.url(OWNER), pool_size=1, statement_timeout_s=300)
    async with engine.connect() as connection:
        drifts = await proofs.drifts(connection)
    await engine.dispose()
    settled, cost = rig.written["settled"], rig.written["cost"]
    wanted = {
        "events": settled,
        "rolled_up": settled,
        "cost": cost,
        "rolled_up_cost": cost,
        "revenue": cost,
        **dict.fromkeys(("wrong_rollups", "conflicts", "parked", "uncovered"), 0),
    }
    if found != wanted or drifts or rig.written["refused"]:
        sys.exit(f"the books are wrong: {found}, not {wanted}; drifts: {drifts}")
    return {
        name: str(value) if "cost" in name or name == "revenue" else value for name, value in found.items()
    }


async def measure(asked: argparse.Namespace, stack: contextlib.ExitStack) -> dict[str, Any]:
    """All phases on one rig, which is taken down when `stack` closes."""
    folder = Path(tempfile.mkdtemp(prefix="steelyard-bench-"))
    folder.chmod(0o711)
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    rig = await prepare(folder)
    stack.callback(rig.postgres.stop)
    stack.callback(rig.stop_settler)
    phases: dict[str, Any] = {}
    if asked.count:
        phases["catch_up"] = await catch_up(rig, events=asked.count)
        print(phases["catch_up"], file=sys.stderr)
    if asked.sustain_s:
        phases["sustain"] = await sustain(rig, rate=asked.sustain_rate, seconds=asked.sustain_s)
        print(phases["sustain"], file=sys.stderr)
    if asked.outage_s:
        phases["outage"] = await outage(rig, rate=asked.rate, seconds=asked.outage_s)
        print(phases["outage"], file=sys.stderr)
    return {**phases, "books": await prove(rig)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, default=100_000 / 60)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--sustain-rate", type=float, default=105_000 / 60)
    parser.add_argument("--sustain-s", type=float, default=20)
    parser.add_argument("--outage-s", type=float, default=30)
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the rig is taken down
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        phases = asyncio.run(measure(asked, stack))
    result = {
        "benchmark": "settler",
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine.describe(),
        "market": Size().__dict__,
        **phases,
        "wall_s": round(time.monotonic() - started, 1),
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "settler.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
