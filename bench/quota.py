"""Whether limits hold to the last unit over many processes, at which cost, and how soon a change applies.

`make bench-quota` starts four gateways with everything on, PostgreSQL, a settler and the engine stand-in, and
lets 200 clients want more than there is: of one tenant's wallet, rate and concurrency, one gateway killed
midway in one round of three; of a thousand tenants' at once. Then the smallest limits, a task's budget, and
changes. What happened is computed from the gateways' own notes of each claim and from the events in the
books. `QUICK=1` takes less of each. Writes `bench/results/quota.json`; ends with 1 if anything is wrong.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Awaitable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvloop

from bench import machine, quota_changes, quota_exact, quota_rounds, quota_tenants
from bench.quota_stack import Stack, open_stack

RESULTS = Path(__file__).parent / "results"
QUICK = bool(os.environ.get("QUICK"))
GATEWAYS = 4
TTFT_MS = 40
COVERED = 200 if QUICK else 2_000
"""About how many requests the wallet of a round covers; three times as many are wished for."""
ROUND_S = 6.0 if QUICK else 90.0
AWAY_S = 2.0 if QUICK else 10.0
TENANTS = 50 if QUICK else 1_000
TENANTS_S = 2.5 if QUICK else 20.0
CHANGES = 2 if QUICK else 20
CALLS = 5 if QUICK else 25
MOST_ROUND_TRIPS = 0.05
LEAST_USED = 0.99
MOST_MS = 1000


async def measure() -> dict[str, Any]:
    """All parts, one after the other, on one stack."""
    async with open_stack(gateways=GATEWAYS, ttft_ms=TTFT_MS) as stack:
        return {
            "away_from_exhaustion": await _told("away", quota_rounds.away(stack, seconds=AWAY_S)),
            "rounds": [await _told(f"round {n + 1}", _round(stack, n)) for n in range(3)],
            "tenants": await _told("tenants", quota_tenants.play(stack, tenants=TENANTS, seconds=TENANTS_S)),
            "one_request_a_minute": await _told(
                "one request", quota_exact.one_request_a_minute(stack, whole_minute=not QUICK)
            ),
            "one_token_over": await _told("one token", quota_exact.one_token_over(stack)),
            "task_budget": await _told("task", quota_exact.task_budget(stack, calls=CALLS)),
            "changes": await _told("changes", quota_changes.measure(stack, rounds=CHANGES)),
            "stays_zero": await _zeros(stack),
        }


def _round(stack: Stack, number: int) -> Awaitable[dict[str, Any]]:
    """The second of three loses a gateway."""
    return quota_rounds.play(stack, number=number, covered=COVERED, seconds=ROUND_S, kill=number == 1)


async def _told(name: str, part: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    """What a part comes to; its time goes to standard error."""
    began = time.monotonic()
    found = await part
    print(f"{name}: {time.monotonic() - began:.1f} s", file=sys.stderr)
    return found


async def _zeros(stack: Stack) -> dict[str, int]:
    """The database's own counters of what can't happen."""
    row = await stack.books.fetchrow(
        "SELECT (SELECT coalesce(sum(uncovered), 0)::bigint FROM lease) AS uncovered,"
        " (SELECT count(*) FROM usage_conflict) AS conflicts, (SELECT count(*) FROM parked_record) AS parked"
    )
    assert row is not None
    return dict(row)


def wrongs(found: dict[str, Any]) -> list[str]:
    """What is not as it must be, in words."""
    wrong = []
    for name, part in (
        *((f"round {n + 1}", part) for n, part in enumerate(found["rounds"])),
        ("tenants", found["tenants"]),
    ):
        wrong += [f"{name}: {limit} passed by {n}" for limit, n in part["overshoot"].items() if n]
        refused = part["refused_while_available"].items()
        wrong += [f"{name}: {n} refused by {limit} while available" for limit, n in refused if n]
        if part.get("served_without_event"):
            wrong.append(f"{name}: {part['served_without_event']} answers that no event tells of")
        if part["notes_without_event"]:
            wrong.append(f"{name}: {part['notes_without_event']} claims differ from the events")
    answers = [*(part["requests"]["answers"] for part in found["rounds"]), found["tenants"]["answers"]]
    if hung := sum(each.get("hung", 0) for each in answers):
        wrong.append(f"{hung} requests were not answered in half a minute")
    for n, part in enumerate(found["rounds"]):
        if part["utilisation"] < LEAST_USED and not QUICK:
            wrong.append(f"round {n + 1}: {part['utilisation']} of the wallet used")
    if found["away_from_exhaustion"]["round_trips_per_admitted"] > MOST_ROUND_TRIPS:
        wrong.append("too many round trips away from exhaustion")
    for name in ("one_request_a_minute", "one_token_over", "task_budget"):
        if found[name]["wrong"]:
            wrong.append(f"{name} is not exact")
    if found["changes"]["max_ms"] >= MOST_MS:
        wrong.append(f"a change took {found['changes']['max_ms']} ms")
    return wrong + [f"{name} is {value}" for name, value in found["stays_zero"].items() if value]


def main() -> int:
    started = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the stack is taken down
    before = machine.describe()
    found = uvloop.run(measure())
    wrong = wrongs(found)
    result = {
        "benchmark": "quota",
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": QUICK,
        "machine": before,
        "gateways": GATEWAYS,
        "clients": quota_rounds.CLIENTS,
        "limits": {
            "tokens_per_minute": quota_rounds.TOKENS_PER_MINUTE,
            "burst": quota_rounds.BURST,
            "concurrent": quota_rounds.AT_ONCE,
        },
        "wrong": wrong,
        **found,
        "wall_s": round(time.monotonic() - started, 1),
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "quota.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
