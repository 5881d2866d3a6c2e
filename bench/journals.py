"""Gateways that only journal: `python -m bench.journals FOLDER MARKET [--rate R | --count N]`.

Writes admissions and settlements with the real `JournalWriter`, one per incarnation of the market, each
request settled a second or so after its admission. With `--rate` it goes on until SIGTERM, then settles
what is open; with `--count` it stops by itself. At the end it tells on standard output what it wrote.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
from collections import deque
from pathlib import Path

import uvloop

from app.core.clock import Clock, SystemClock
from bench.market import Market, admission, settlement
from billing.journal.model import Admitted
from billing.journal.writer import JournalWriter

_TICK_S = 0.01
_OPEN_S = 1.0
_COMMIT_MS = 5


class Gateway:
    """One incarnation's requests."""

    def __init__(self, market: Market, writer: JournalWriter, *, clock: Clock, draw: random.Random) -> None:
        self.writer = writer
        self.settled = self.cost = self.refused = 0
        self._market = market
        self._clock = clock
        self._draw = draw
        self._open: deque[Admitted] = deque()

    def admit(self) -> None:
        admitted = admission(self._market, at_ms=self._clock.now_ms(), draw=self._draw)
        self._open.append(admitted)
        self.writer.append(admitted)

    def settle(self, *, before_ms: int) -> None:
        """Settle the requests that were admitted before a time."""
        while self._open and self._open[0].at_ms < before_ms:
            settled = settlement(self._open.popleft(), at_ms=self._clock.now_ms(), draw=self._draw)
            self.writer.settle(settled, self._answered)
            self.settled += 1
            self.cost += settled.cost_picos

    def _answered(self, durable: bool) -> None:  # noqa: FBT001 - the journal's callback
        self.refused += not durable


async def write_at(rate: float, gateways: list[Gateway], *, clock: Clock, stop: asyncio.Event) -> None:
    """Admit `rate` requests a second over all, evenly, until `stop`."""
    started, admitted = clock.monotonic(), 0
    while not stop.is_set():
        due = int((clock.monotonic() - started) * rate)
        for number in range(admitted, due):
            gateways[number % len(gateways)].admit()
        admitted = due
        for gateway in gateways:
            gateway.settle(before_ms=clock.now_ms() - round(_OPEN_S * 1000))
        await asyncio.sleep(_TICK_S)


async def write_all(count: int, gateways: list[Gateway], *, clock: Clock) -> None:
    """Admit and settle so many, as fast as they come."""
    for number in range(count):
        gateways[number % len(gateways)].admit()
        if number % 200 == 0:
            for gateway in gateways:
                gateway.settle(before_ms=clock.now_ms() - 20)
            await asyncio.sleep(0)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("market", type=Path)
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--count", type=int, default=0)
    asked = parser.parse_args()
    clock, draw, market = SystemClock(), random.Random(1), Market.load(asked.market)
    gateways = []
    for incarnation_id in market.incarnations:
        writer = JournalWriter.create(
            asked.folder, incarnation_id=incarnation_id, clock=clock, commit_ms=_COMMIT_MS
        )
        gateways.append(Gateway(market, writer, clock=clock, draw=draw))
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    print("ready", flush=True)
    if asked.count:
        await write_all(asked.count, gateways, clock=clock)
    else:
        await write_at(asked.rate, gateways, clock=clock, stop=stop)
    for gateway in gateways:
        gateway.settle(before_ms=clock.now_ms() + 1000)
        await gateway.writer.close()
    told = {name: sum(getattr(one, name) for one in gateways) for name in ("settled", "cost", "refused")}
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    uvloop.run(main())
