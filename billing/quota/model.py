"""What process and authority say to each other, and what a request gets of its allowances.

Amounts are whole numbers of what the allowance counts (picos for a wallet), never negative unless said.
"""

from __future__ import annotations

import msgspec

from app.core.ids import AllowanceId


class Need(msgspec.Struct, frozen=True):
    """What a request needs of one allowance."""

    allowance_id: AllowanceId
    amount: int


class Denied(msgspec.Struct, frozen=True):
    """The allowance that lacked, as the authority last told.

    limit, available: 0 where it was never told.   retry_after_s: None if waiting won't help: what is
    spent leaves too little.   cut_off: the authority can't be reached or has closed this process;
    the numbers are old then.
    """

    allowance_id: AllowanceId
    limit: int
    available: int
    retry_after_s: float | None
    cut_off: bool = False


class LeaseReport(msgspec.Struct, frozen=True):
    """A process' word on one lease: the cumulative total returned, and what a renewal wants."""

    allowance_id: AllowanceId
    returned: int
    want: int


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

    granted, returned: cumulative.   available: negative when the limit was lowered below what is out.
    recall_ms: how long from now recall lasts; 0: there is none.
    """

    allowance_id: AllowanceId
    granted: int
    returned: int
    limit: int
    spent: int
    available: int
    recall_ms: int


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
    """Where an allowance stands.   outstanding: leased and neither settled nor returned.

    available = limit − spent − outstanding.   unleased: the part of `spent` that no lease covered.
    """

    limit: int
    spent: int
    outstanding: int
    available: int
    unleased: int
