"""A gateway as it is in production that also notes its admissions: `python -m bench.quota_gateway`.

The file of notes is named by the environment: `BENCH_NOTES`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from app.bootstrap import gateway
from app.core.errors import Rejected
from app.core.ids import AllowanceId
from app.core.money import parse_picos
from app.gateway.admission import AdmissionDesk
from app.gateway.model import Admission, Ask, Principal
from bench.quota_notes import Admitted, Ended, Message, Notes, Refused, Taken
from billing.quota import borrower
from billing.quota.lease import Hold
from billing.quota.leases import Leases, Release
from billing.quota.model import Answer, Need, Sync
from billing.quota.wire import Wire


class NotedHold(Hold):
    """A hold that knows its number."""

    __slots__ = ("number",)

    number: int


class NotedLeases(Leases):
    """Leases that note when something was taken of them, and when it ended."""

    def __init__(self, *, notes: Notes, **more: Any) -> None:
        super().__init__(**more)
        self.notes = notes
        self._claims = 0

    def claim(self, needs: Sequence[Need]) -> Hold | None:
        found = super().claim(needs)
        if found is None:
            return None
        self._claims += 1
        hold = NotedHold(found.needs, found.leases, terms=found.terms)
        hold.number = self._claims
        amounts = tuple((need.allowance_id, need.amount) for need in needs)
        self.notes.add(Taken(self._claims, time.time_ns(), amounts))
        return hold

    def settle(self, hold: Hold, used: Mapping[AllowanceId, int]) -> Release:
        self._note_end(hold, dict(used), withdrawn=False)
        return super().settle(hold, used)

    def withdraw(self, hold: Hold) -> None:
        self._note_end(hold, {}, withdrawn=True)
        super().withdraw(hold)

    def _note_end(self, hold: Hold, used: dict[Any, int], *, withdrawn: bool) -> None:
        assert isinstance(hold, NotedHold)
        self.notes.add(Ended(hold.number, time.time_ns(), used, withdrawn))


class NotedWire(Wire):
    """A line to the authority that notes its messages."""

    notes: Notes

    async def send_twice(self, sync: Sync) -> Answer:
        sent_ns = time.time_ns()
        answer = await super().send_twice(sync)
        out = {
            str(lease.allowance_id): lease.granted - lease.settled - lease.returned for lease in answer.leases
        }
        self.notes.add(Message(sent_ns, time.time_ns(), out))
        return answer


class NotedDesk:
    """Admission that notes what it cost and what it refused."""

    def __init__(self, desk: AdmissionDesk, *, notes: Notes) -> None:
        self._desk = desk
        self._notes = notes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._desk, name)

    async def admit(self, ask: Ask, *, principal: Principal, **more: Any) -> Admission:
        tenant_id = principal.tenant.tenant_id
        asks, began_ns, cpu_ns = self._desk.asks, time.time_ns(), time.thread_time_ns()
        try:
            admission = await self._desk.admit(ask, principal=principal, **more)
        except Rejected as refusal:
            self._notes.add(_refused(refusal, tenant_id, began_ns=began_ns))
            raise
        cpu_ns, waited_ns = time.thread_time_ns() - cpu_ns, time.time_ns() - began_ns
        waited = self._desk.asks > asks  # else it did not let go of the loop, and the CPU is all its own
        assert isinstance(admission.hold, NotedHold)
        self._notes.add(
            Admitted(
                admission.hold.number,
                admission.request_id,
                tenant_id,
                None if waited else cpu_ns,
                waited_ns if waited else None,
            )
        )
        return admission


def _refused(refusal: Rejected, tenant_id: str, *, began_ns: int) -> Refused:
    facts = refusal.facts
    read = parse_picos if "currency" in facts else int
    needed, available = facts.get("needed"), facts.get("available")
    return Refused(
        tenant_id=tenant_id,
        began_ns=began_ns,
        ended_ns=time.time_ns(),
        status=refusal.status,
        reason=refusal.reason.value,
        allowance_id=facts.get("allowance_id"),
        needed=None if needed is None else read(needed),
        available=None if available is None else read(available),
    )


def main() -> int:
    """Run it; returns its exit code."""
    notes = Notes(Path(os.environ["BENCH_NOTES"]))

    where: Any = gateway
    line: Any = borrower
    desk = where.admission_desk
    NotedWire.notes = notes
    line.Wire = NotedWire
    where.Leases = partial(NotedLeases, notes=notes)
    where.admission_desk = lambda *own, **more: NotedDesk(desk(*own, **more), notes=notes)
    return gateway.main()


if __name__ == "__main__":
    sys.exit(main())
