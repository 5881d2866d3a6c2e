"""A hand of the settler: `python -m app.bootstrap.settler_hand BATCH`, started by `app.bootstrap.settler`.

On standard input it is told the names of its journals; on standard output it tells where it stands. It
ends when its input does: with its chief.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from app.bootstrap import settler as chief
from app.core.settings import settings
from billing.journal.settler import Settler
from billing.journal.standing import Standing

_TELL_S = 0.1


class Share:
    """The company of a hand: what its chief gave it."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def share(self, paths: list[Path]) -> list[Path]:
        return [path for path in paths if path.name in self._names]

    def standings(self) -> Sequence[Standing]:
        return ()

    async def listen(self, stop: asyncio.Event) -> None:
        """Take what is given, until the chief is gone."""
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
        )
        async for line in reader:
            self._names.add(line.decode().rstrip("\n"))
        stop.set()


async def tell(settler: Settler, stop: asyncio.Event) -> None:
    """Tell the chief where we stand, until there is nobody to listen."""
    while not stop.is_set():
        try:
            os.write(sys.stdout.fileno(), msgspec.json.encode(settler.standing()) + b"\n")
        except BrokenPipeError:
            stop.set()
        await asyncio.sleep(_TELL_S)


async def main(*, batch: int) -> None:
    """Settle until a signal, or until the chief is gone."""
    own, share = settings(), Share()
    stop = chief.prepare("settler-hand", own)
    engine = chief.connect(own)
    settler = chief.settler_of(own, engine, batch=batch, company=share)
    beside = [asyncio.create_task(share.listen(stop)), asyncio.create_task(tell(settler, stop))]
    try:
        await chief.settle(settler, stop, interval_s=own.settle_interval_s)
    finally:
        for task in beside:
            task.cancel()
        settler.close()
        await engine.dispose()


if __name__ == "__main__":
    asyncio.run(main(batch=int(sys.argv[1])))
