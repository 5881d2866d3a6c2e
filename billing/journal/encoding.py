"""Usage events as rows of PostgreSQL's binary COPY, made in one pass. Pure.

A general driver asks each of 49 values what it is; here whatever comes in groups is packed in groups, and
what repeats from row to row (who, which model, which outcome) is remembered as bytes.
Source: postgresql.org/docs/current/sql-copy.html, "Binary Format"; a field is `int32 length | value`, and a
null the length −1. The values are what the types' receive functions read (numeric: `numeric_recv`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from struct import Struct, error, pack
from typing import Any

import msgspec

from app.core.ids import BackendId, IncarnationId, TransactionId
from billing.journal.join import Charge
from billing.journal.model import Admitted, Settled, Used
from billing.journal.rows import json_bytes, without_nul
from billing.metering.model import Meter, Outcome, Usage, UsageSource
from billing.rating.model import Rates

_ADMITTED = (
    "tenant_id",
    "project_id",
    "key_id",
    "model_id",
    "model_name",
    "deployment_id",
    "endpoint",
    "streamed",
    "choices",
    "prompts",
    "currency",
    "price_version_id",
    "rates",
)
_SETTLED = ("outcome", "usage_source", "backend_id", "status", "error_code", "finish_reason", "flags")
_MOMENTS = ("posted_at", "admitted_at", "settled_at")
_COUNTS = (
    *("input", "input_cached", "input_cache_write", "output", "reasoning"),
    *("billed_input", "billed_input_cached", "billed_input_cache_write", "billed_output"),
    *("duration_ms", "bytes_relayed"),
)
_AMOUNTS = ("cost", "hold", "unleased")
_REST = ("request_id", "task_id", "payload_hash", "incarnation_id", "unknown_bound", "attempts", "holds")
EVENT_COLUMNS = (*_ADMITTED, *_SETTLED, *_MOMENTS, *_COUNTS, "ttft_ms", *_AMOUNTS, *_REST, "transaction_id")
"""In the order of a row's fields."""

HEAD = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TAIL = pack(">h", -1)
_NULL = pack(">i", -1)
_FIELDS = pack(">h", len(EVENT_COLUMNS))
_FIXED = len(_MOMENTS) + len(_COUNTS)
_INT8S = Struct(">" + "iq" * _FIXED).pack
_INT8 = Struct(">iq").pack
_HASH_LENGTH = pack(">i", 64)
_JSONB_VERSION = b"\x01"
_EPOCH_MS = 946_684_800_000
"""PostgreSQL's: 2000-01-01."""
_LAST_MS = 253_402_300_799_999
"""The end of the year 9999: a time beyond it can be stored, but not be read back."""
_TEXT_OID = 25
_NUMERIC_BASE = 10_000
_FOUR_DIGITS = _NUMERIC_BASE**4
_NUMERIC4 = Struct(">ihhHH4H").pack
"""Leading zeros and all: PostgreSQL strips them."""
_ZERO = pack(">ihhHH", 8, 0, 0, 0, 0)
_sha256 = hashlib.sha256


class EventRows:
    """Encodes the events of one incarnation that are posted at one time."""

    def __init__(self, incarnation_id: IncarnationId, *, posted_ms: int) -> None:
        self._incarnation = _text(incarnation_id)
        self._posted = _micros(posted_ms)

    def encode(
        self, charge: Charge, *, transaction_id: TransactionId | None, purse_use: tuple[int, int]
    ) -> bytes:
        """The row of a charge.   purse_use: hold and overrun of the wallet.

        Raises ValueError of what no column can hold.
        """
        admitted, settled = charge.admitted, charge.settled
        hold, overrun = purse_use
        try:
            return b"".join(
                (
                    _FIELDS,
                    _of_admitted(*_constants(admitted)),
                    _of_settled(*_endings(settled)),
                    self._counts(admitted, settled),
                    _NULL if settled.ttft_ms is None else _INT8(8, settled.ttft_ms),
                    _numeric(settled.cost_picos),
                    _numeric(hold),
                    _numeric(overrun),
                    _text(admitted.request_id),
                    _nullable(admitted.task_id),
                    _HASH_LENGTH,
                    _sha256(charge.admitted_bytes).digest(),
                    _sha256(charge.settled_bytes).digest(),
                    self._incarnation,
                    _NULL if settled.unknown_bound is None else _jsonb(_classes(settled.unknown_bound)),
                    _jsonb(settled.attempts),
                    _holds(settled.used),
                    _NULL if transaction_id is None else _known_text(transaction_id),
                )
            )
        except error as flaw:
            raise ValueError(f"a value is out of its column's range: {flaw}") from flaw

    def _counts(self, admitted: Admitted, settled: Settled) -> bytes:
        usage, billed = settled.usage, settled.billed
        return _INT8S(
            8, self._posted,
            8, _micros(admitted.at_ms),
            8, _micros(settled.at_ms),
            8, usage.input,
            8, usage.input_cached,
            8, usage.input_cache_write,
            8, usage.output,
            8, usage.reasoning,
            8, billed.input,
            8, billed.input_cached,
            8, billed.input_cache_write,
            8, billed.output,
            8, settled.duration_ms,
            8, settled.bytes_relayed,
        )  # fmt: skip


class _Held(msgspec.Struct, gc=False):
    """A hold and its use as the event tells them: decimal strings, JSON numbers might be read as floats."""

    allowance_id: str
    what: str
    held: str
    used: str


def _holds(used: tuple[Used, ...]) -> bytes:
    if len(used) == 1 and (one := used[0]).allowance_id.isidentifier():  # nothing in it to escape
        amounts = f'"held":"{one.held}","used":"{one.used}"'
        data = f'[{{"allowance_id":"{one.allowance_id}","what":"{one.what}",{amounts}}}]'.encode()
        return pack(">i", len(data) + 1) + _JSONB_VERSION + data
    return _jsonb([_Held(each.allowance_id, each.what, str(each.held), str(each.used)) for each in used])


def _constants(admitted: Admitted) -> tuple[Any, ...]:
    """What many admissions have in common, in the order of `_ADMITTED`."""
    return (
        admitted.tenant_id,
        admitted.project_id,
        admitted.key_id,
        admitted.model_id,
        admitted.model_name,
        admitted.deployment_id,
        admitted.endpoint,
        admitted.streamed,
        admitted.choices,
        admitted.prompts,
        admitted.currency,
        admitted.price_version_id,
        admitted.rates,
    )


@lru_cache(maxsize=16_384)
def _of_admitted(*values: Any) -> bytes:
    *head, streamed, choices, prompts, currency, version, rates = values
    flag, numbers = pack(">i?", 1, streamed), pack(">ihii", 2, choices, 4, prompts)
    texts = b"".join(map(_text, head))
    return texts + flag + numbers + _text(currency) + _text(version) + _rates(rates)


def _endings(settled: Settled) -> tuple[Outcome, UsageSource, BackendId | None, int, Any, Any, Any]:
    """What many settlements have in common, in the order of `_SETTLED`."""
    return (
        settled.outcome,
        settled.usage_source,
        settled.backend_id,
        settled.status,
        settled.error_code,
        settled.finish_reason,
        settled.flags,
    )


@lru_cache(maxsize=4096)
def _of_settled(*values: Any) -> bytes:
    outcome, source, backend_id, status, error_code, finish_reason, flags = values
    known = _text(outcome.value) + _text(source.value) + _nullable(backend_id) + pack(">ih", 2, status)
    return known + _nullable(without_nul(error_code)) + _nullable(without_nul(finish_reason)) + _texts(flags)


def _text(value: str) -> bytes:
    data = value.encode()
    return pack(">i", len(data)) + data


_known_text = lru_cache(maxsize=1024)(_text)


def _nullable(value: str | None) -> bytes:
    return _NULL if value is None else _text(value)


def _texts(values: Iterable[str]) -> bytes:
    """A `text[]` of one dimension, or of none if it is empty (`array_recv`)."""
    items = [_text(value) for value in values]
    if not items:
        body = pack(">iiI", 0, 0, _TEXT_OID)
    else:
        body = pack(">iiIii", 1, 0, _TEXT_OID, len(items), 1) + b"".join(items)
    return pack(">i", len(body)) + body


def _micros(at_ms: int) -> int:
    """A `timestamptz`: microseconds since 2000."""
    if not 0 <= at_ms <= _LAST_MS:
        raise ValueError(f"{at_ms} is no time in milliseconds")
    return (at_ms - _EPOCH_MS) * 1000


def _numeric(value: int) -> bytes:
    """A whole `numeric`: digits of base 10,000 from the first on, sign, no scale."""
    if not value:
        return _ZERO
    if 0 < value < _FOUR_DIGITS:
        high, low = divmod(value, _NUMERIC_BASE * _NUMERIC_BASE)
        return _NUMERIC4(
            16,
            4,
            3,
            0,
            0,
            high // _NUMERIC_BASE,
            high % _NUMERIC_BASE,
            low // _NUMERIC_BASE,
            low % _NUMERIC_BASE,
        )
    digits: list[int] = []
    rest = abs(value)
    while rest:
        rest, digit = divmod(rest, _NUMERIC_BASE)
        digits.append(digit)
    count = len(digits)
    sign = 0x4000 if value < 0 else 0
    return pack(f">ihhHH{count}H", 8 + 2 * count, count, count - 1, sign, 0, *reversed(digits))


def _jsonb(value: Any) -> bytes:
    data = json_bytes(value)
    return pack(">i", len(data) + 1) + _JSONB_VERSION + data


@lru_cache(maxsize=1024)
def _rates(rates: Rates) -> bytes:
    return _jsonb({meter.value: getattr(rates, meter.value) for meter in Meter})


def _classes(usage: Usage) -> dict[str, int]:
    return {meter.value: usage.of(meter) for meter in Meter}
