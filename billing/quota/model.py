"""What process and authority say to each other, and what a request gets of its allowances.

Amounts are whole numbers of what the allowance counts (picos for a wallet), never negative unless said.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from app.core.ids import AllowanceId

RatesWhenCutOff = Literal["share", "closed", "open"]
"""What rates do while the authority can't be reached for longer than a lease of them lasts."""


class Rate(msgspec.Struct, frozen=True):
    """What makes an allowance a rate: it fills by `per_minute` all the time, up to `burst`."""

    per_minute: int
    burst: int


class Need(msgspec.Struct, frozen=True):
    """What a request needs of one allowance. rate: set if, and only if, the allowance is a rate."""

    allowance_id: AllowanceId
    amount: int
    rate: Rate | None = None


class Denied(msgspec.Struct, frozen=True):
    """The allowance that lacked, as the authority last told.

    limit, available: 0 where it was never told; the limit of a rate is what it gets per minute.
    retry_after_s: None if waiting won't help: what is spent leaves too little, or a rate never holds
    that much; of a rate, the time that it takes to fill.   cut_off: the authority can't be reached or
    has closed this process; the numbers are old then.
    """

    allowance_id: AllowanceId
    limit: int
    available: int
    retry_after_s: float | None
    cut_off: bool = False


class LeaseReport(msgspec.Struct, frozen=True):
    """A process' word on one lease: the cumulative total returned, and what a renewal wants.

    consumed: of a rate, the cumulative total; of all else the journal tells it, and this is 0.
    epoch: which lease of the rate the totals are of, as last told; else 0.
    """

    allowance_id: AllowanceId
    returned: int
    want: int
    consumed: int = 0
    epoch: int = 0


class Sync(msgspec.Struct, frozen=True):
    """The only message of a process: safe to lose, double, delay and overtake.

    sequence: grows; an authority gives only for one above the last it saw.   asks: whole needs, each
    all or nothing, in the order in which they are served.
    """

    sequence: int
    leases: tuple[LeaseReport, ...]
    asks: tuple[tuple[Need, ...], ...]


class LeaseState(msgspec.Struct, frozen=True, array_like=True):
    """The authority's word on one lease and its allowance.

    granted, returned, settled: cumulative; a rate's lease that ended by time begins anew with another
    epoch.   spent: of a rate, what of `limit` is in neither its bucket nor a lease.   available:
    negative when the limit was lowered below what is out.   recall_ms: how long from now recall lasts;
    0: there is none.   level_micros, holders: of a rate, what its bucket has in millionths, and how many
    processes have a lease of it.
    """

    allowance_id: AllowanceId
    granted: int
    returned: int
    limit: int
    spent: int
    available: int
    recall_ms: int
    settled: int = 0
    epoch: int = 0
    level_micros: int = 0
    holders: int = 0


class Answer(msgspec.Struct, frozen=True):
    """What the authority answers to a `Sync`.

    asks: for each ask the allowances that lacked (none: granted); None if the message was an old one,
    which is given nothing.   closed: this incarnation has ended; there is nothing else in the answer.
    """

    sequence: int
    leases: tuple[LeaseState, ...] = ()
    asks: tuple[tuple[AllowanceId, ...], ...] | None = None
    closed: bool = False


class AllowanceStatus(msgspec.Struct, frozen=True):
    """Where an allowance stands, fields in this order.   outstanding: leased, not settled, not returned.

    available = limit − spent − outstanding; of a rate, what its bucket has.   unleased: the part of
    `spent` that no lease covered.
    """

    limit: int
    spent: int
    outstanding: int
    available: int
    unleased: int
