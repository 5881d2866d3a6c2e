"""What a settlement becomes that the disk refused: its client never got the end. Pure."""

from __future__ import annotations

import msgspec

from billing.journal.model import Settled, Used
from billing.metering.model import NOTHING, Outcome
from billing.metering.uses import used_of


def undelivered(settled: Settled) -> Settled:
    """The settlement to be written once the disk takes it.

    What would have been completed was not: it is `lost`, its usage recorded, nothing charged. How other
    requests ended did not depend on our disk: theirs stand. The lease takes the hold's cost back only when
    the incarnation ends, for its process has counted it as used.
    """
    if settled.outcome is not Outcome.COMPLETED:
        return settled
    return msgspec.structs.replace(
        settled,
        outcome=Outcome.LOST,
        error_code="journal_unwritable",
        billed=NOTHING,
        cost_picos=0,
        used=tuple(
            Used(used.allowance_id, used.held, used_of(used.what, NOTHING, cost_picos=0), used.what)
            for used in settled.used
        ),
        flags=(*settled.flags, "not_delivered"),
    )
