"""Journals for tests: live ones by the real writer, dead ones as bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from app.core.clock import Clock
from app.core.ids import IncarnationId
from billing.journal import lock
from billing.journal.frames import pack
from billing.journal.model import RECORD_VERSION, Opened, Record, Settled, encode
from billing.journal.writer import JournalWriter
from tests.billing.journal.shop import NOW_MS


async def live(folder: Path, incarnation_id: IncarnationId, *records: Record, clock: Clock) -> JournalWriter:
    """A journal whose writer lives, with the records in the file."""
    writer = JournalWriter.create(folder, incarnation_id=incarnation_id, clock=clock, commit_ms=1)
    await add(writer, *records)
    return writer


async def add(writer: JournalWriter, *records: Record) -> None:
    """Append records and wait until they are in the file."""
    wanted = writer.records + len(records)
    for record in records:
        if isinstance(record, Settled):
            writer.settle(record, lambda durable: None)
        else:
            writer.append(record)
    while writer.records < wanted:
        await asyncio.sleep(0.001)


def opened(incarnation_id: IncarnationId, *, version: int = RECORD_VERSION) -> Opened:
    return Opened(version=version, incarnation_id=incarnation_id, at_ms=NOW_MS, host="here")


def frames(incarnation_id: IncarnationId, records: Iterable[Record]) -> list[bytes]:
    """The frames of a journal with these records."""
    return [pack(encode(record)) for record in (opened(incarnation_id), *records)]


def dead(folder: Path, incarnation_id: IncarnationId, data: bytes) -> Path:
    """A journal that nobody writes any more; `data` replaces what was there."""
    path = lock.path_of(folder, incarnation_id)
    path.write_bytes(data)
    return path


def append(path: Path, data: bytes) -> None:
    """Add bytes as the writer of a journal would."""
    with path.open("ab") as file:
        file.write(data)
