"""Ties corrections to the events that they correct, in bounded memory: an external sort by request.

A chain fixes what was sealed; whether a correction may be what it is, only its event can tell. What is
demanded is what the ledger holds by: an event's net cost is never below nothing, no class has fewer than no
tokens, and what is charged goes by tokens. What a request was held for, lines don't say.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterator
from hashlib import blake2b
from itertools import groupby
from operator import attrgetter
from tempfile import TemporaryFile
from typing import IO, NamedTuple

from app.core.money import format_picos
from billing.chain.link import canonical
from billing.chain.wire import Change, Correction, Event, Tokens
from billing.metering.model import Meter

_CHUNK = 1 << 13
"""Records that are sorted at once in memory."""
_READ = 32
_FORM = struct.Struct(">16sBQ16s16s16s4q40s")
_EVENT, _CORRECTION = 0, 1
_METERS = tuple(meter.value for meter in Meter)
_FACTS = (
    "tenant_id",
    "project_id",
    "key_id",
    "model_id",
    "model",
    "price_version_id",
    "currency",
    "prices",
)


class Tie(NamedTuple):
    """What is wrong with a correction.   line: its number.   what: None if its event isn't in the file."""

    line: int
    id: str
    what: str | None


class _Record(NamedTuple):
    """A line, as far as it matters.   amount: picos that it adds to the request's cost.

    worth: the part of them that its tokens cost; the rest was given back, or charged, without tokens.
    """

    key: bytes
    kind: int
    number: int
    facts: bytes
    amount: int
    worth: int
    tokens: tuple[int, ...]
    id: str


class Ties:
    """Takes events and corrections whose own numbers are sound; `found` tells what does not fit, once.

    partial: corrections may be left out, so what they come to is not known.
    """

    def __init__(self, *, partial: bool, chunk: int = _CHUNK) -> None:
        self._partial = partial
        self._chunk = chunk
        self._records: list[bytes] = []
        self._runs: list[tuple[int, int]] = []
        self._file: IO[bytes] | None = None

    def add(self, line: Event | Correction, *, number: int) -> None:
        """Take a line and its number in the file."""
        self._records.append(_pack(line, number=number))
        if len(self._records) >= self._chunk:
            self._spill()

    def found(self) -> Iterator[Tie]:
        """What is wrong with corrections, by request; nothing can be added any more."""
        try:
            runs = [self._read(start, end) for start, end in self._runs]
            merged = heapq.merge(sorted(self._records), *runs)
            for _, records in groupby(map(_unpack, merged), key=attrgetter("key")):
                yield from _check(records, partial=self._partial)
        finally:
            if self._file is not None:
                self._file.close()

    def _spill(self) -> None:
        if self._file is None:
            self._file = TemporaryFile()  # noqa: SIM115 - `found` closes it
        start = self._file.tell()
        self._file.writelines(sorted(self._records))
        self._runs.append((start, self._file.tell()))
        self._records = []

    def _read(self, start: int, end: int) -> Iterator[bytes]:
        """The records of a run. Runs are read in turns, so each finds its own place again."""
        assert self._file is not None
        while start < end:
            self._file.seek(start)
            block = self._file.read(min(_READ * _FORM.size, end - start))
            start += len(block)
            yield from (block[at : at + _FORM.size] for at in range(0, len(block), _FORM.size))


def _check(records: Iterator[_Record], *, partial: bool) -> Iterator[Tie]:
    """What is wrong with one request's corrections. Its event, if there is one, comes first."""
    event: _Record | None = None
    amount, worth, tokens = 0, 0, (0,) * len(_METERS)
    broken: Tie | None = None
    for record in records:
        if record.kind == _EVENT and event is not None:
            continue  # sealed twice, which is another finding
        amount, worth = amount + record.amount, worth + record.worth
        tokens = tuple(have + more for have, more in zip(tokens, record.tokens, strict=True))
        if record.kind == _EVENT:
            event = record
            continue
        if event is None:
            yield Tie(record.number, record.id, None)
            continue
        if record.facts != event.facts:
            what = "tenant, project, key, model, price version, prices or currency are not those of line"
            yield Tie(record.number, record.id, f"its {what} {event.number}, which it corrects")
        # Clocks of two processes can order two corrections otherwise than they were made: the end counts.
        why = _beyond(amount, worth, tokens=tokens, event=event)
        broken = None if why is None else broken or Tie(record.number, record.id, why)
    if broken is not None and not partial:
        yield broken


def _beyond(amount: int, worth: int, *, tokens: tuple[int, ...], event: _Record) -> str | None:
    """How corrections went beyond what an event allows, or None."""
    for name, count in zip(_METERS, tokens, strict=True):
        if count < 0:
            return f"with it, line {event.number} has {count} billed {name} tokens"
    if amount < 0:
        return f"with it, the request of line {event.number} costs {format_picos(amount)}: less than nothing"
    if amount > worth:
        more = format_picos(amount - worth)
        return f"with it, the request of line {event.number} costs {more} more than its billed tokens"
    return None


def _pack(line: Event | Correction, *, number: int) -> bytes:
    is_event = isinstance(line, Event)
    own: Tokens | Change
    if isinstance(line, Event):
        own, amount, line_id = line.billed, int(line.cost_picos), ""
    else:
        own, amount, line_id = line.billed_change, -int(line.amount_picos), line.correction_id
    tokens = [getattr(own, name) for name in _METERS]
    worth = amount if is_event or any(tokens) else 0
    facts = canonical({name: getattr(line, name) for name in _FACTS})
    return _FORM.pack(
        _short(line.request_id.encode()),
        _EVENT if is_event else _CORRECTION,
        number,
        _short(facts),
        amount.to_bytes(16, "big", signed=True),
        worth.to_bytes(16, "big", signed=True),
        *tokens,
        line_id.encode(),
    )


def _unpack(raw: bytes) -> _Record:
    key, kind, number, facts, amount, worth, *tokens, line_id = _FORM.unpack(raw)
    return _Record(
        key,
        kind,
        number,
        facts,
        int.from_bytes(amount, "big", signed=True),
        int.from_bytes(worth, "big", signed=True),
        tuple(tokens),
        line_id.rstrip(b"\0").decode(errors="ignore"),
    )


def _short(text: bytes) -> bytes:
    return blake2b(text, digest_size=16).digest()
