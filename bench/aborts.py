"""A client that hangs up right after each chunk of a real stream: what is billed, what the engine still made.

`make bench-aborts` starts the whole stack twice: in front of the engine stand-in, which speaks vLLM's
protocol, and in front of the embedded llama-server. `ARGS="--engine vllm --url http://HOST:PORT"` measures
any running engine too, or with `--alone` nothing else. For every k it compares the tokens billed with the
last count that had passed the gateway and with the engine's own counter.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import machine
from bench.counters import EngineCounter
from bench.service import Service, running

RESULTS = Path(__file__).parent / "results"
QUESTION = "Tell me a long story about a market, its balance, and the seventh merchant"
EVERY_USAGE = {"include_usage": True, "continuous_usage_stats": True}
STAND_IN_CHUNK_MS = "10"


@dataclass(frozen=True)
class Cut:
    """One aborted stream.   after: chunks waited for.   chunks, told: what the client saw.

    engine: tokens by the engine's counter.   not_billed: those of them that nobody pays, made after the last
    count or after the cut.   stopped_after_ms: from the hang-up until the engine was idle.
    """

    after: int
    chunks: int
    told: int
    billed: int
    engine: int
    not_billed: int
    source: str
    outcome: str
    flags: list[str]
    stopped_after_ms: float


async def cut_after(service: Service, counter: EngineCounter, *, chunks: int, max_tokens: int) -> Cut:
    """Hang up after so many chunks and compare the three counts."""
    await counter.idle_after_s()
    before = await counter.generated()
    message = {"role": "user", "content": f"{QUESTION}. Number {chunks}, {time.time_ns()}."}
    body = {"messages": [message], "max_tokens": max_tokens, "stream_options": EVERY_USAGE}
    seen = await service.ask(body, chunks=chunks)
    idle_s = await counter.idle_after_s()
    engine = await counter.generated() - before
    told = await service.explain(seen.request_id)
    billed = sum(line["tokens"] for line in told["charge"]["lines"] if line["meter"] == "output")
    return Cut(
        after=chunks,
        chunks=seen.chunks,
        told=seen.deltas if seen.told is None else seen.told,
        billed=billed,
        engine=engine,
        not_billed=engine - billed,
        source=told["usage"]["source"],
        outcome=told["outcome"],
        flags=told["flags"],
        stopped_after_ms=round(idle_s * 1000, 1),
    )


async def cuts(service: Service, *, chunks: int, repeats: int) -> list[Cut]:
    """Every k from 1 to `chunks`, each so many times, of answers that would be longer by half."""
    counter = EngineCounter(service.engine_url)
    found = []
    try:
        for number in range(chunks * repeats):
            one = await cut_after(
                service, counter, chunks=number % chunks + 1, max_tokens=chunks * 3 // 2 + 64
            )
            found.append(one)
            print(f"\r{number + 1}/{chunks * repeats}", end="", file=sys.stderr, flush=True)
    finally:
        print(file=sys.stderr)
        await counter.close()
    return found


def summary(found: list[Cut]) -> dict[str, Any]:
    """The figures of all cuts of one engine. Every fault is a cut that should not be."""
    tails = sorted(cut.not_billed for cut in found)
    waits = sorted(cut.stopped_after_ms for cut in found)
    return {
        "cuts": len(found),
        "billed_exactly_what_the_client_was_told": sum(cut.billed == cut.told for cut in found),
        "billed_beyond_what_the_client_read": sum(max(cut.billed - cut.told, 0) for cut in found),
        "engine_tokens": sum(cut.engine for cut in found),
        "billed_tokens": sum(cut.billed for cut in found),
        "not_billed_tokens": sum(tails),
        "not_billed_max": tails[-1],
        "not_billed_median": tails[len(tails) // 2],
        "stopped_after_ms_median": waits[len(waits) // 2],
        "stopped_after_ms_max": waits[-1],
        "sources": {source: sum(c.source == source for c in found) for source in {c.source for c in found}},
        "faults": [asdict(cut) for cut in found if is_fault(cut)],
    }


def is_fault(cut: Cut) -> bool:
    """Less billed than the client was told, more than the engine made, or not known at all."""
    return not cut.told <= cut.billed <= cut.engine or cut.source == "unknown"


async def measure(engine_url: str | None, *, chunks: int, repeats: int) -> dict[str, Any]:
    async with running(engine_url=engine_url) as service:
        found = await cuts(service, chunks=chunks, repeats=repeats)
        return {"model": service.model, **summary(found), "each": [asdict(cut) for cut in found]}


@contextlib.contextmanager
def stand_in() -> Iterator[str]:
    """The address of an engine stand-in that speaks vLLM's protocol."""
    command = [sys.executable, "-m", "scheduler.simulator", "--model", "stand-in"]
    process = subprocess.Popen([*command, "--chunk-ms", STAND_IN_CHUNK_MS], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait(timeout=30)


async def measure_all(asked: argparse.Namespace) -> dict[str, Any]:
    """Figures by engine."""
    every = {"chunks": asked.chunks, "repeats": asked.repeats}
    found = {asked.engine: await measure(asked.url, **every)} if asked.url else {}
    if asked.url and asked.alone:
        return found
    with stand_in() as url:
        found["stand-in"] = await measure(url, **every)
    return {**found, "llama-server": await measure(None, **every)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.aborts", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--url", help="measure the engine that runs at this address, too")
    parser.add_argument("--engine", default="vllm", help="how to call it in the results")
    parser.add_argument("--alone", action="store_true", help="measure only the engine at --url")
    parser.add_argument("--chunks", type=int, default=40, help="cut after 1 … N chunks")
    parser.add_argument("--repeats", type=int, default=1, help="how often each")
    parser.add_argument("--output", type=Path, default=RESULTS / "aborts.json")
    asked = parser.parse_args()
    engines = asyncio.run(measure_all(asked))
    result = {
        "benchmark": "aborts",
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine.describe(),
        "chunks": asked.chunks,
        "engines": engines,
    }
    asked.output.parent.mkdir(parents=True, exist_ok=True)
    asked.output.write_text(json.dumps(result, indent=2) + "\n")
    print(
        json.dumps(
            {name: {k: v for k, v in of.items() if k != "each"} for name, of in engines.items()}, indent=2
        )
    )
    if any(of["faults"] for of in engines.values()):
        sys.exit("some cuts were billed wrong")


if __name__ == "__main__":
    main()
