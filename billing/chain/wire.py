"""Lines and heads as they are read back: strict, so that nothing is taken for what it isn't."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from billing.chain.link import canonical

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Hash = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
_Day = Annotated[str, msgspec.Meta(pattern="^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]
_Version = Literal[1]


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A shape with nothing beside it."""


class Place(_Strict, frozen=True):
    """Where a line stands in its tenant's chain."""

    day: _Day
    sequence: Annotated[int, msgspec.Meta(ge=1)]
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

    input: int
    input_cached: int
    input_cache_write: int
    output: int


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
    posted_at: datetime
    price_version_id: str
    prices: Prices
    currency: Annotated[str, msgspec.Meta(pattern="^[A-Z]{3}$")]


class Event(_Priced, frozen=True, tag="usage.event", kw_only=True):
    """One settled request."""

    endpoint: str
    streamed: bool
    choices: _Count
    prompts: _Count
    admitted_at: datetime
    settled_at: datetime
    outcome: str
    status: int
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
    """The last line of a day, as the tenant kept it."""

    tenant_id: str
    day: _Day
    sequence: Annotated[int, msgspec.Meta(ge=1)]
    hash: _Hash


class _Heads(msgspec.Struct, frozen=True):
    data: list[KeptHead]


Line: TypeAlias = Event | Correction | Withheld
_lines = msgspec.json.Decoder(Event | Correction | Withheld | PageEnd).decode
_heads = msgspec.json.Decoder(_Heads).decode
_plain = msgspec.json.Decoder().decode


class Unreadable(ValueError):
    """A line that is none, and why."""


def read_line(raw: bytes) -> tuple[Line | PageEnd, dict[str, Any]]:
    """A line and its plain content. Raises Unreadable if it isn't one in canonical form.

    Only the canonical bytes are taken: a key twice, or a number written in another way, is not.
    """
    try:
        line, plain = _lines(raw), _plain(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Unreadable(f"it is no usage line: {error}") from None
    if canonical(plain) != raw:
        raise Unreadable("it is not in the form in which it was handed out (canonical JSON)")
    return line, plain


def read_heads(raw: bytes) -> list[KeptHead]:
    """The heads in an answer of `/v1/usage/events/heads`. Raises Unreadable if it is none."""
    try:
        return _heads(raw).data
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Unreadable(f"these are no heads: {error}") from None
