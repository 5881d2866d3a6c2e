"""Joins a journal's records to what has to be posted: a settlement to its admission. Pure.

The order of records does not matter to the result, nor does a record that comes twice: a settlement
that is met before its admission waits for it, and of several progress rows after the admission the
furthest counts.
"""

from __future__ import annotations

import hashlib

import msgspec

from app.core.ids import IncarnationId, RequestId
from billing.journal.frames import Frame
from billing.journal.model import (
    RECORD_VERSION,
    Admitted,
    Opened,
    Progress,
    Reading,
    Record,
    Refused,
    Settled,
    Used,
    decode,
    encode,
)
from billing.metering.model import NOTHING, Outcome, Usage, UsageSource
from billing.metering.policy import billed
from billing.metering.uses import used_of
from billing.rating.model import cost


class Charge(msgspec.Struct, frozen=True, gc=False):
    """A request and its end, ready to be posted.

    start: offset of the first of its records.   end: where the file is done with it.
    """

    start: int
    end: int
    admitted: Admitted
    settled: Settled
    admitted_bytes: bytes
    settled_bytes: bytes

    @property
    def payload_hash(self) -> bytes:
        """64 bytes: SHA-256 of the admission, then of the settlement."""
        return digest(self.admitted_bytes) + digest(self.settled_bytes)


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """A refused request, to be kept for `explain`."""

    start: int
    end: int
    refused: Refused
    payload: bytes


class Unreadable(msgspec.Struct, frozen=True, gc=False):
    """A whole frame whose payload is no record that we know."""

    start: int
    end: int
    payload: bytes


Entry = Charge | Refusal | Unreadable


class Orphan(msgspec.Struct, frozen=True, gc=False):
    """A settlement whose admission was not met."""

    start: int
    end: int
    settled: Settled
    payload: bytes


class _Open(msgspec.Struct, gc=False):
    start: int
    admitted: Admitted
    payload: bytes
    furthest: Reading | None = None


class WrongJournal(Exception):
    """The file is not the journal of the incarnation that its name tells, or newer than this program."""


def digest(payload: bytes) -> bytes:
    return hashlib.sha256(payload).digest()


class Joiner:
    """What is open in one journal; fed with its frames in the order of the file."""

    def __init__(self, incarnation_id: IncarnationId) -> None:
        self._incarnation_id = incarnation_id
        self._open: dict[RequestId, _Open] = {}
        self._orphans: dict[RequestId, list[Orphan]] = {}
        self._last_ms = 0

    @property
    def oldest(self) -> int | None:
        """Offset of the first record that still waits for its counterpart."""
        starts = [next(iter(self._open.values())).start] if self._open else []
        return min(starts + [waiting[0].start for waiting in self._orphans.values()], default=None)

    @property
    def orphans(self) -> list[Orphan]:
        """Settlements without admission so far, in the order of the file."""
        return [orphan for waiting in self._orphans.values() for orphan in waiting]

    def forget(self, orphan: Orphan) -> None:
        """Someone else took care of it."""
        waiting = self._orphans[orphan.settled.request_id]
        waiting.remove(orphan)
        if not waiting:
            del self._orphans[orphan.settled.request_id]

    def check_head(self, frame: Frame) -> None:
        """Raises WrongJournal if the first record is not that of this incarnation's journal."""
        record = _record(frame)
        if isinstance(record, Opened):
            self._check(record)

    def take(self, frame: Frame) -> Entry | None:
        """What this record completes. Raises WrongJournal by an `Opened` that does not fit."""
        record = _record(frame)
        match record:
            case None:
                return Unreadable(frame.start, frame.end, frame.payload)
            case Opened():
                self._check(record)
            case Progress():
                self._read(record)
            case Admitted():
                return self._admit(frame, record)
            case Settled():
                return self._settle(frame, record)
            case Refused():
                return Refusal(frame.start, frame.end, record, frame.payload)
        return None

    def lost(self, end: int) -> list[Charge]:
        """The open requests of a dead process, settled as `lost` from their furthest progress.

        `tail_unknown` says that nobody knows what came after it: at most one progress interval of a stream.

        The same journal gives the same settlements, whoever computes them and when.
        """
        return [self._lost(open_, end) for open_ in self._open.values()]

    def _check(self, opened: Opened) -> None:
        if opened.version > RECORD_VERSION:
            raise WrongJournal(f"it is of version {opened.version}; this program reads {RECORD_VERSION}")
        if opened.incarnation_id != self._incarnation_id:
            raise WrongJournal(f"it is the journal of {opened.incarnation_id}")
        self._last_ms = max(self._last_ms, opened.at_ms)

    def _read(self, progress: Progress) -> None:
        self._last_ms = max(self._last_ms, progress.at_ms)
        for reading in progress.readings:
            open_ = self._open.get(reading.request_id)
            if open_ is not None and (open_.furthest is None or _reach(reading) > _reach(open_.furthest)):
                open_.furthest = reading

    def _admit(self, frame: Frame, admitted: Admitted) -> Charge | None:
        self._last_ms = max(self._last_ms, admitted.at_ms)
        if waiting := self._orphans.get(admitted.request_id):
            orphan = waiting[0]
            self.forget(orphan)
            return Charge(orphan.start, frame.end, admitted, orphan.settled, frame.payload, orphan.payload)
        self._open.setdefault(admitted.request_id, _Open(frame.start, admitted, frame.payload))
        return None

    def _settle(self, frame: Frame, settled: Settled) -> Charge | None:
        self._last_ms = max(self._last_ms, settled.at_ms)
        open_ = self._open.pop(settled.request_id, None)
        if open_ is None:
            waiting = self._orphans.setdefault(settled.request_id, [])
            if all(orphan.payload != frame.payload for orphan in waiting):
                waiting.append(Orphan(frame.start, frame.end, settled, frame.payload))
            return None
        return Charge(open_.start, frame.end, open_.admitted, settled, open_.payload, frame.payload)

    def _lost(self, open_: _Open, end: int) -> Charge:
        admitted, furthest = open_.admitted, open_.furthest
        counted = furthest and furthest.usage
        source = UsageSource.ENGINE_PARTIAL if counted else UsageSource.UNKNOWN
        usage = counted or NOTHING
        charged = billed(Outcome.LOST, source, usage)
        price = cost(charged, admitted.rates)
        unknown = Usage(input=admitted.input_bound, output=admitted.output_bound)
        settled = Settled(
            request_id=admitted.request_id,
            at_ms=self._last_ms,
            outcome=Outcome.LOST,
            usage_source=source,
            usage=usage,
            billed=charged,
            unknown_bound=unknown if source is UsageSource.UNKNOWN else None,
            cost_picos=price,
            used=tuple(
                Used(held.allowance_id, held.amount, used_of(held.what, charged, cost_picos=price), held.what)
                for held in admitted.holds
            ),
            backend_id=furthest.backend_id if furthest else None,
            status=0,
            error_code="lost",
            finish_reason=None,
            ttft_ms=None,
            duration_ms=max(0, self._last_ms - admitted.at_ms),
            bytes_relayed=furthest.bytes_relayed if furthest else 0,
            flags=("tail_unknown",),
            attempts=(),
        )
        return Charge(open_.start, end, admitted, settled, open_.payload, encode(settled))


def _record(frame: Frame) -> Record | None:
    """What a frame says; None if it is no record that we know."""
    try:
        return decode(frame.payload)
    except (msgspec.ValidationError, msgspec.DecodeError):
        return None


def _reach(reading: Reading) -> tuple[int, int]:
    return (-1 if reading.usage is None else reading.usage.total, reading.bytes_relayed)
