"""The machine's disk: journals in a real folder; writes tear, syncs count, power fails.

A killed process loses nothing that it wrote, a power cut takes what was not synced. Who synced how much
is seen at the real calls: the writer's `sync`, and `fdatasync` within the settler's own reads. Each call by
which the product's own code changes the disk may be the one before which its process dies.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from billing.journal.file import JournalFile
from billing.journal.frames import unpack
from billing.journal.sync import OnDurable, answer
from billing.journal.tail import JournalTail
from tests.simulation.loop import Killed, Process, current_process
from tests.simulation.trace import Trace

_SYNC_S = 0.004
_SYNCS = frozenset({os.fdatasync, os.fsync})
_CHANGES = _SYNCS | {
    os.open, os.write, os.ftruncate, os.rename, os.replace, os.unlink, os.mkdir, os.utime, fcntl.flock,
}  # fmt: skip
"""Calls to the kernel before each of which a process may die, where the product makes them itself."""


class Disk:
    """One folder of journals.   full: writes fail after some bytes.   synced: by file, in bytes."""

    def __init__(self, folder: Path, *, rng: Random, trace: Trace) -> None:
        self.folder = folder
        self.full = False
        self.synced: dict[Path, int] = {}
        self.rng = rng
        self.trace = trace
        self._writers: dict[Process, set[int]] = {}

    def open_file(self, process: Process) -> Callable[..., SimFile]:
        """How a gateway process takes over the descriptor of its journal."""

        def take(descriptor: int, *, path: Path) -> SimFile:
            self._writers.setdefault(process, set()).add(descriptor)
            self.synced[path] = os.fstat(descriptor).st_size
            return SimFile(descriptor, path=path, disk=self, process=process)

        return take

    async def run_blocking(self, work: Callable[..., Any], /, *args: Any, **named: Any) -> Any:
        """The settler's way to the disk: in place, and of work on a journal it is seen what it synced."""
        loop: Any = asyncio.get_running_loop()
        whose = getattr(work, "__self__", None)
        tail = getattr(whose, "tail", whose)
        if isinstance(tail, JournalTail):
            return await loop.run_in_place(self._on, tail, partial(work, *args, **named))
        return await loop.run_in_place(self.change, partial(work, *args, **named))

    def change(self, work: Callable[[], Any]) -> Any:
        """What `work` returns; its process may die before each of its calls that change the disk."""
        return self._watched(work)[0]

    def let_go(self, process: Process) -> None:
        """The kernel closes the journal of a dead gateway: its lock is free."""
        for number in self._writers.pop(process, ()):
            fcntl.flock(number, fcntl.LOCK_UN)

    def let_readers_go(self) -> None:
        """The kernel closes what a dead settler had open, with the locks that it had got."""
        writers = {number for numbers in self._writers.values() for number in numbers}
        for number in self._open_files() - writers:
            fcntl.flock(number, fcntl.LOCK_UN)

    def fail_power(self) -> None:
        """Lose what was not synced: all of it, a part, or only its bytes while its length stays."""
        for path in sorted(self.folder.glob("*.journal")):
            size, kept = path.stat().st_size, self.synced.get(path, 0)
            if size <= kept:
                continue
            end, zeros = self.rng.randint(kept, size), self.rng.random() < 0.3
            if zeros:  # the length of a write without its bytes
                end = unpack(path.read_bytes()[:end], offset=0)[0][-1].end
            with path.open("r+b") as file:
                file.truncate(end)
                if zeros:
                    file.truncate(size)
            self.synced[path] = path.stat().st_size
            self.trace.note("disk", "lost", path.name[-14:], size - end)

    def close(self) -> None:
        """Close what the dead have left open."""
        for number in self._open_files():
            os.close(number)

    def _on(self, tail: JournalTail, work: Callable[[], Any]) -> Any:
        """Do it, and see whether it synced the journal."""
        size = tail.path.stat().st_size if tail.path.exists() else 0
        result, synced = self._watched(work)
        if synced:
            self.synced[tail.path] = max(self.synced.get(tail.path, 0), size)
        return result

    def _watched(self, work: Callable[[], Any]) -> tuple[Any, bool]:
        """As `_watched`; a process that dies in it leaves the disk as it was in that moment."""
        process = current_process()
        left: list[dict[Path, bytes]] = []
        durable = False

        def before(call: object) -> None:
            nonlocal durable
            if call is os.rename and durable:  # a draft gets its name: what it has was synced
                self.synced |= {path.with_suffix(""): path.stat().st_size for path in self._drafts()}
            durable = (durable or call in _SYNCS) and call is not os.write
            try:
                process.moment("disk")
            except Killed:
                left.append(self._files())
                raise

        try:
            return _watched(work, before=before)
        except Killed:
            for files in left:  # the dead's own `finally` cleans nothing up
                self._put_back(files)
            raise

    def _drafts(self) -> Iterator[Path]:
        return self.folder.glob("*.journal.new")

    def _files(self) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}

    def _put_back(self, files: dict[Path, bytes]) -> None:
        now = self._files()
        for path in now.keys() - files.keys():
            path.unlink()
        for path, data in files.items():
            if now.get(path) != data:
                path.write_bytes(data)

    def _open_files(self) -> set[int]:
        found = set()
        for name in os.listdir("/proc/self/fd"):
            try:
                target = os.readlink(f"/proc/self/fd/{name}")
            except OSError:
                continue
            if target.startswith(f"{self.folder}/") and not target.endswith(".db"):
                found.add(int(name))
        return found


class SimFile(JournalFile):
    """A journal whose every write and sync may be the last thing that its process does."""

    def __init__(self, descriptor: int, *, path: Path, disk: Disk, process: Process) -> None:
        super().__init__(descriptor, path=path)
        self._disk = disk
        self._process = process

    def write(self, pieces: Sequence[bytes]) -> int:
        if self._process.dead or not pieces:
            return len(pieces)  # a dead process' words go nowhere
        self._process.moment("write")
        if self._disk.full:
            return self._write_some(pieces)
        self._tear(pieces)
        written = super().write(pieces)
        self._disk.trace.note(self._process.name, "wrote", written, sum(map(len, pieces)))
        self._process.moment("written")
        return written

    def sync(self) -> bool:
        if self._process.dead:
            return False
        self._process.moment("sync")
        size = os.fstat(self._descriptor).st_size
        done, synced = _watched(super().sync)
        if synced:
            self._disk.synced[self.path] = size
        self._process.moment("synced")
        return bool(done)

    def close(self) -> None:
        if not self._process.dead:
            self._disk.let_go(self._process)
            super().close()

    def _tear(self, pieces: Sequence[bytes]) -> None:
        """The process may die within the write: a part of the bytes is in the file then."""
        data = b"".join(pieces)
        size = os.fstat(self._descriptor).st_size
        parts = {"torn": self._disk.rng.randrange(len(data)), "torn_first": 1, "torn_last": len(data) - 1}
        if len(pieces) > 1:
            parts["torn_between"] = len(pieces[0])
        for kind, part in parts.items():
            os.write(self._descriptor, data[:part])
            self._process.moment(kind)
            os.ftruncate(self._descriptor, size)

    def _write_some(self, pieces: Sequence[bytes]) -> int:
        """As much as the disk still takes."""
        data = b"".join(pieces)
        done = os.write(self._descriptor, data[: self._disk.rng.randrange(len(data) or 1)])
        self._disk.trace.note(self._process.name, "disk-full", done, len(data))
        self._process.moment("full")
        return self._cut(pieces, done, error=OSError(errno.ENOSPC, "No space left on device"))


class SimSyncer:
    """Syncs a while later, for all that was written before, like the thread of a gateway."""

    def __init__(self, file: JournalFile, *, process: Process, rng: Random) -> None:
        self.groups = 0
        self._file = file
        self._process = process
        self._rng = rng
        self._waiting: list[OnDurable | None] = []
        self._busy = False

    @property
    def backlog(self) -> int:
        return len(self._waiting)

    def add(self, waiting: Sequence[OnDurable | None]) -> None:
        self._waiting.extend(waiting)
        if not self._busy:
            self._busy = True
            self._process.post_later(self._rng.random() * _SYNC_S, self._sync)

    async def close(self) -> None:
        while self._busy:
            await asyncio.sleep(_SYNC_S)

    def _sync(self) -> None:
        group, self._waiting = self._waiting, []
        durable = not self._file.broken and self._file.sync()
        self.groups += 1
        self._process.post_later(self._rng.random() * _SYNC_S, self._tell, group, durable)

    def _tell(self, group: Sequence[OnDurable | None], durable: bool) -> None:
        self._busy = bool(self._waiting)
        if self._busy:
            self._process.post_later(self._rng.random() * _SYNC_S, self._sync)
        answer([(each, durable) for each in group])


def _watched(work: Callable[[], Any], *, before: Callable[[Any], object] = bool) -> tuple[Any, bool]:
    """What `work` returns, and whether it really asked the kernel to sync: nobody's word is taken for it.

    before: called with each call that is about to change the disk; what it raises ends the work there.
    """
    synced = False

    def watch(_frame: Any, event: str, argument: Any) -> None:
        nonlocal synced
        if event == "c_call" and argument in _CHANGES:
            before(argument)
            synced = synced or argument in _SYNCS

    outer = sys.getprofile()
    sys.setprofile(watch)
    try:
        result = work()
    finally:
        sys.setprofile(outer)
    return result, synced
