"""The processes that settle a machine's journals with the settler: their shares, and what they tell.

A settler's Python runs on one core and waits for PostgreSQL with it; two settlers use two. Each journal is
one's for as long as the crew lives, so nothing is shared between them but the lock of the folder: the hands
inherit it, so no other settler begins while one of them is still at work. A hand ends when its chief does.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from billing.journal.standing import Standing

log = logging.getLogger(__name__)

_decode = msgspec.json.Decoder(Standing).decode


class _Hand:
    """One process beside the chief's."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.standing = Standing(failure="a hand has not begun yet")
        self._listening = asyncio.create_task(self._listen())

    def give(self, path: Path) -> None:
        """Make a journal its own."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{path.name}\n".encode())

    async def ended(self) -> None:
        """Returns when the process has ended, or closed its mouth."""
        await self._listening
        await self.process.wait()

    def dismiss(self) -> None:
        """Let it finish what it does, and end."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    async def stop(self, *, timeout_s: float) -> None:
        """Dismiss it; kill it after `timeout_s`."""
        self.dismiss()
        try:
            await asyncio.wait_for(self.ended(), timeout_s)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()

    async def _listen(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.standing = _decode(line)


class Crew:
    """The chief's company: it knows whose each journal is."""

    def __init__(self) -> None:
        self._hands: list[_Hand] = []
        self._places: dict[str, int] = {}

    async def start(self, hands: int, *, batch: int, lock: int) -> None:
        """Start so many processes.   lock: the descriptor that they inherit."""
        for _ in range(hands):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "app.bootstrap.settler_hand", str(batch)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                pass_fds=(lock,),
            )
            self._hands.append(_Hand(process))

    def share(self, paths: list[Path]) -> list[Path]:
        """The chief's own; a new journal goes to who has the fewest."""
        counts = [0] * (1 + len(self._hands))
        for path in paths:
            if path.name in self._places:
                counts[self._places[path.name]] += 1
        for path in paths:
            if path.name not in self._places:
                place = self._places[path.name] = counts.index(min(counts))
                counts[place] += 1
                if place:
                    self._hands[place - 1].give(path)
        return [path for path in paths if self._places[path.name] == 0]

    def standings(self) -> Sequence[Standing]:
        return [hand.standing for hand in self._hands]

    async def broken(self) -> None:
        """Returns when a hand has ended: its journals are nobody's then. Never, if there are none."""
        if not self._hands:
            await asyncio.Event().wait()
        waiting = [asyncio.create_task(hand.ended()) for hand in self._hands]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()

    def dismiss(self) -> None:
        """Let all hands finish what they do, and end."""
        for hand in self._hands:
            hand.dismiss()

    async def stop(self, *, timeout_s: float) -> None:
        """Dismiss all hands, kill them after `timeout_s`; returns when all have ended."""
        await asyncio.gather(*(hand.stop(timeout_s=timeout_s) for hand in self._hands))
