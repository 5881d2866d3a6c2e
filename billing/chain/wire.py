"""Lines and heads as they are read back: strict, so that nothing is taken for what it isn't."""

from __future__ import annotations

import re
from datetime import date, datetime
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from billing.chain.lines import MOMENTS
from billing.chain.link import canonical

_MOST = 2**63 - 1
_Count = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]
_Number = Annotated[int, msgspec.Meta(ge=1, le=_MOST)]
_More = Annotated[int, msgspec.Meta(ge=-_MOST, le=_MOST)]
_Hash = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
_Day = Annotated[str, msgspec.Meta(pattern=r"\A2[0-9]{3}-[0-9]{2}-[0-9]{2}\Z")]
_Moment = Annotated[datetime, msgspec.Meta(tz=True)]
_Version = Literal[1]


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A shape with nothing beside it."""


class Place(_Strict, frozen=True):
    """Where a line stands in its tenant's chain."""

    day: _Day
    sequence: _Number
    previous: _Hash
    hash: _Hash


class Tokens(_Strict, frozen=True):
    """Tokens by disjoint class."""

    input: _Count
    input_cached: _Count
    input_cache_write: _Count
    output: _Count


class Counted(_Strict, frozen=True):
    """Tokens by disjoint class; `reasoning` is a part of `output`."""

    input: _Count
    input_cached: _Count
    input_cache_write: _Count
    output: _Count
    reasoning: _Count


class Change(_Strict, frozen=True):
    """Tokens more by class, or fewer."""

    input: _More
    input_cached: _More
    input_cache_write: _More
    output: _More


class Prices(_Strict, frozen=True):
    """Decimal strings of currency units per million tokens."""

    input: str
    input_cached: str
    input_cache_write: str
    output: str


class _Line(_Strict, frozen=True, tag_field="object", kw_only=True):
    version: _Version
    tenant_id: str
    chain: Place


class _Priced(_Line, frozen=True, kw_only=True):
    request_id: str
    project_id: str
    key_id: str
    model_id: str
    model: str
    posted_at: _Moment
    price_version_id: str
    prices: Prices
    currency: Annotated[str, msgspec.Meta(pattern=r"\A[A-Z]{3}\Z")]


class Event(_Priced, frozen=True, tag="usage.event", kw_only=True):
    """One settled request."""

    endpoint: str
    streamed: bool
    choices: _Count
    prompts: _Count
    admitted_at: _Moment
    settled_at: _Moment
    outcome: str
    status: _Count
    finish_reason: str | None
    usage_source: str
    usage: Counted
    billed: Tokens
    unknown_bound: Tokens | None
    flags: list[str]
    cost: str
    cost_picos: str


class Correction(_Priced, frozen=True, tag="usage.correction", kw_only=True):
    """A later correction of one event; positive amounts go back to the tenant."""

    correction_id: str
    reason: str
    billed_change: Change
    amount: str
    amount_picos: str


class Withheld(_Line, frozen=True, tag="usage.withheld", kw_only=True):
    """A line that was not asked for.   line: its digest."""

    line: _Hash


class PageEnd(_Strict, frozen=True, tag_field="object", tag="usage.page", kw_only=True):
    """The end of a download.   lines: how many it had.   next: null if there are no more."""

    version: _Version
    lines: _Count
    next: str | None


class KeptHead(msgspec.Struct, frozen=True):
    """The last line of a day, as the tenant kept it.   open: more lines of that day could follow."""

    tenant_id: str
    day: _Day
    sequence: _Number
    hash: _Hash
    open: bool = True


class _Heads(msgspec.Struct, frozen=True):
    data: list[KeptHead]


Line: TypeAlias = Event | Correction | Withheld
_lines = msgspec.json.Decoder(Event | Correction | Withheld | PageEnd).decode
_heads = msgspec.json.Decoder(_Heads).decode
_plain = msgspec.json.Decoder().decode


_NO_LINE = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError)
"""What bytes that are no line can raise: other JSON, no day, a number beyond 64 bits, depth without end."""
_MOMENT = re.compile(r"2[0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z")
_ANY = "2000-01-01T00:00:00.000000Z"
"""In place of a moment that a kind of line doesn't have."""


class Unreadable(ValueError):
    """A line that is none, and why."""


def read_line(raw: bytes) -> tuple[Line | PageEnd, dict[str, Any]]:
    """A line and its plain content. Raises Unreadable if it isn't one in canonical form.

    Only the canonical bytes are taken: a key twice, or a number or a moment written in another way, is not.
    """
    try:
        line, plain = _lines(raw), _plain(raw)
        is_canonical = canonical(plain) == raw
        if not isinstance(line, PageEnd):
            date.fromisoformat(line.chain.day)
    except _NO_LINE as error:
        raise Unreadable(f"it is no usage line: {error}") from None
    if not is_canonical or not all(_MOMENT.fullmatch(plain.get(name, _ANY)) for name in MOMENTS):
        raise Unreadable("it is not in the form in which it was handed out (canonical JSON)")
    return line, plain


def read_heads(raw: bytes) -> list[KeptHead]:
    """The heads in an answer of `/v1/usage/events/heads`. Raises Unreadable if it is none."""
    try:
        heads = _heads(raw).data
        for head in heads:
            date.fromisoformat(head.day)
    except _NO_LINE as error:
        raise Unreadable(f"these are no heads: {error}") from None
    return heads
