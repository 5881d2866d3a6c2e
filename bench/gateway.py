"""CPU per request and per streamed chunk of the gateway, with everything on, beside nginx.

`make bench-gateway` starts the whole stack on a throw-away folder in front of the engine stand-in,
then lets the contenders answer the same loads in alternation. `QUICK=1` takes one short round.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from bench import load, machine, rig

RESULTS = Path(__file__).parent / "results"
QUICK = bool(os.environ.get("QUICK"))
ROUNDS = 1 if QUICK else 5
JSON_REQUESTS = 1_500 if QUICK else 6_000
STREAMS = 32 if QUICK else 64
CHUNKS = 60 if QUICK else 200
IDLE_S = 5


@dataclass(frozen=True)
class Load:
    """One kind of traffic: how many connections send how many requests, and what counts as work."""

    name: str
    body: dict[str, Any]
    connections: int
    requests: int
    unit: str


def loads(model: str) -> tuple[Load, ...]:
    """JSON answers at saturation, and streams of one token a chunk at 50 chunks a second."""
    text = "Weigh every token once. " * 8
    return (
        Load("json", _ask(model, text, max_tokens=16), 16, JSON_REQUESTS, "request"),
        Load(
            "paced",
            _ask(model, f"[simulator chunk_ms=20]{text}", max_tokens=CHUNKS, stream=True),
            STREAMS,
            STREAMS,
            "chunk",
        ),
    )


def _ask(model: str, text: str, **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], **fields}


def check_for(kind: Load) -> load.Check:
    """Whether an answer is whole: usage and text for JSON, every chunk and `[DONE]` for a stream."""

    def json_answer(status: int, body: bytes) -> bool:
        return status == 200 and json.loads(body)["usage"]["completion_tokens"] == kind.body["max_tokens"]

    def stream(status: int, body: bytes) -> bool:
        whole = body.count(b'"content"') >= kind.body["max_tokens"]
        return status == 200 and whole and body.rstrip().endswith(b"data: [DONE]")

    return stream if kind.body.get("stream") else json_answer


async def measure(contender: rig.Contender, kind: Load) -> dict[str, float]:
    """One round: CPU of the contender's processes, latencies, faults."""
    shot = load.Shot(
        load.post(
            host=contender.host,
            path="/v1/chat/completions",
            key=contender.key,
            body=json.dumps({**kind.body, "model": contender.model}).encode(),
        ),
        check_for(kind),
    )
    closed_loop = partial(load.closed_loop, shot, host=contender.host, port=contender.port)
    await closed_loop(connections=4, requests=8)
    before = machine.cpu_seconds(contender.pids)
    tally = await closed_loop(connections=kind.connections, requests=kind.requests)
    used = machine.cpu_seconds(contender.pids) - before
    work = tally.answers * (CHUNKS if kind.unit == "chunk" else 1)
    return {
        f"cpu_us_per_{kind.unit}": round(used * 1e6 / work, 1),
        "requests_per_s": round(tally.answers / tally.wall_s, 1),
        "p50_ms": tally.quantile_ms(0.5),
        "p99_ms": tally.quantile_ms(0.99),
        "ttft_p50_ms": tally.quantile_ms(0.5, tally.first_byte_s),
        "ttft_p99_ms": tally.quantile_ms(0.99, tally.first_byte_s),
        "faults": tally.faults,
    }


async def alternate(contenders: list[rig.Contender], model: str) -> dict[str, Any]:
    """All rounds of all loads, the contenders taking turns; medians by contender and load."""
    rounds: dict[str, dict[str, list[dict[str, float]]]] = {c.name: {} for c in contenders}
    for number in range(ROUNDS):
        for kind in loads(model):
            for contender in contenders:
                result = await measure(contender, kind)
                rounds[contender.name].setdefault(kind.name, []).append(result)
                print(
                    f"round {number + 1}/{ROUNDS}  {kind.name:<6} {contender.name:<10} {result}",
                    file=sys.stderr,
                )
    return {
        name: {
            kind: {field: statistics.median(r[field] for r in runs) for field in runs[0]}
            for kind, runs in by.items()
        }
        for name, by in rounds.items()
    }


def idle_cpu(contender: rig.Contender) -> float:
    """Microseconds of CPU a second that the contender's processes use without any request."""
    before, started = machine.cpu_seconds(contender.pids), time.monotonic()
    time.sleep(IDLE_S)
    return round((machine.cpu_seconds(contender.pids) - before) * 1e6 / (time.monotonic() - started), 0)


def ratios(medians: dict[str, Any]) -> dict[str, float | None]:
    """Our CPU over nginx's, by load; None where nginx is not installed."""
    fields = {"json": "cpu_us_per_request", "paced": "cpu_us_per_chunk"}
    theirs = medians.get("nginx")
    return {
        kind: round(medians["steelyard"][kind][field] / theirs[kind][field], 2)
        if theirs and theirs[kind][field]
        else None
        for kind, field in fields.items()
    }


def main() -> None:
    started = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the rig is taken down
    with contextlib.ExitStack() as stack:
        contenders = rig.contenders(stack)
        idle = idle_cpu(contenders[0])
        medians = uvloop.run(alternate(contenders, contenders[0].model))
    result = {
        "benchmark": "gateway",
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": QUICK,
        "rounds": ROUNDS,
        "machine": machine.describe(),
        "loads": {
            kind.name: {"connections": kind.connections, "requests": kind.requests} for kind in loads("m")
        },
        "idle_cpu_us_per_s": idle,
        "medians": medians,
        "ratio_to_nginx": ratios(medians),
        "wall_s": round(time.monotonic() - started, 1),
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "gateway.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    if any(run["faults"] for by in medians.values() for run in by.values()):
        sys.exit("some answers were wrong: the figures count for nothing")


if __name__ == "__main__":
    main()
