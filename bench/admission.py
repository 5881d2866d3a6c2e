"""What admission costs in process: CPU µs of one request from its parsed body to its journal record.

`make bench-admission` admits from leases that cover, as almost all requests are, under 0, 3 and 8 limits of
tenant, project and key; a rate's headers are made too. Ending the request is measured apart.
"""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import time
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import msgspec

from app.catalog.limits import Limit
from app.catalog.snapshot import Fleet, Key, Model, Snapshot, Tenant
from app.core import ids
from app.core.clock import SystemClock
from app.core.ids import AllowanceId, DeploymentId, ModelId, PriceBookId, PriceVersionId
from app.gateway.admission import AdmissionDesk
from app.gateway.body import parse
from app.gateway.model import Ask, Endpoint, Principal
from billing.journal.model import Record, Settled
from billing.metering.model import Usage
from billing.metering.uses import used_of
from billing.quota.lease import Hold
from billing.quota.leases import Leases
from billing.quota.model import Denied, Rate
from billing.rating.model import Rates
from billing.rating.schedule import Schedule, Version

RESULT = Path("bench/results/admission.json")
ROUNDS, REQUESTS = 7, 4000
_KINDS = (
    ("requests", "minute", "tenant"),
    ("tokens", "minute", "tenant"),
    ("picos", "month", "tenant"),
    ("concurrent", "running", "tenant"),
    ("picos", "day", "project"),
    ("tokens", "minute", "key"),
    ("requests", "day", "key"),
    ("max_output", "request", "key"),
)
_PLENTY = 10**30
_RATES = Rates(540_000, 180_000, 540_000, 2_160_000)
_MODEL = Model(ModelId("mdl_1"), "m", 8192, 4096, 256, 0, DeploymentId("dep_1"))
_BODY = {"model": "m", "messages": [{"role": "user", "content": "Say hi " * 20}], "max_tokens": 64}


class _Journal:
    writable = True

    def append(self, record: Record) -> None:
        pass

    def settle(self, record: Settled, on_durable: Callable[[bool], None]) -> None:
        pass


class _Nobody:
    """Nobody has to be asked where the leases cover."""

    async def ask(self, needs: Any) -> Hold | Denied:
        raise AssertionError("the leases cover everything here")

    async def count(self, ask: Ask, model: Model) -> int | None:
        raise AssertionError("nothing has to be counted here")


def scene(limits: int) -> tuple[AdmissionDesk, Principal, Leases]:
    """A desk whose leases cover, and who asks, under so many limits."""
    tenant = Tenant(ids.tenant_id(), "active", "USD", PriceBookId("pbk_1"), AllowanceId("alw_wallet"))
    key = Key(ids.key_id(), tenant.tenant_id, ids.project_id(), b"", frozenset(), None, None, None)
    scopes = {"tenant": tenant.tenant_id, "project": key.project_id, "key": key.key_id}
    snapshot, leases = Snapshot(), Leases()
    version = Version(
        PriceVersionId("pbv_1"), PriceBookId("pbk_1"), from_ms=0, to_ms=None, rates={_MODEL.model_id: _RATES}
    )
    snapshot.fleet = Fleet({"m": _MODEL}, (), Schedule((version,)), {})
    amount = 10**12
    held = [
        Limit(
            ids.allowance_id(), scope, scopes[scope], None, what, window, amount, None, None, None, "plan:p",
            Rate(amount, amount) if window == "minute" else None,
        )
        for what, window, scope in _KINDS[:limits]
    ]  # fmt: skip
    snapshot.limit_book.put(tenant.tenant_id, held, version=1)
    for name, rate in ((AllowanceId("alw_wallet"), None), *((each.allowance_id, each.rate) for each in held)):
        lease = leases.lease(name, rate)
        lease.granted = lease.free = lease.limit = lease.available = _PLENTY
        lease.ends_at, lease.is_known = inf, True
    nobody = _Nobody()
    desk = AdmissionDesk(
        snapshot,
        leases=leases,
        borrower=nobody,
        journal=_Journal(),
        clock=SystemClock(),
        counter=nobody,
    )
    return desk, Principal(key, tenant), leases


async def measured(limits: int) -> dict[str, float]:
    """Medians over rounds of the p50 of admitting, and of freeing what was held, in µs."""
    desk, principal, leases = scene(limits)
    ask = parse(msgspec.json.encode(_BODY), Endpoint.CHAT)
    usage = Usage(input=60, output=40)
    admits, ends = [], []
    for _ in range(ROUNDS):
        admitting, ending = [], []
        for _ in range(REQUESTS):
            request_id = ids.request_id()
            begun = time.perf_counter_ns()
            admission = await desk.admit(ask, request_id=request_id, principal=principal, model=_MODEL)
            admitted = time.perf_counter_ns()
            used = {
                each.allowance_id: used_of(each.what, usage, cost_picos=10**6)
                for each in (*admission.record.holds, *admission.rates)
            }
            leases.settle(admission.hold, used).durable()
            ending.append(time.perf_counter_ns() - admitted)
            admitting.append(admitted - begun)
        admits.append(statistics.median(admitting) / 1000)
        ends.append(statistics.median(ending) / 1000)
    return {
        "admit_us_p50": round(statistics.median(admits), 1),
        "free_us_p50": round(statistics.median(ends), 1),
    }


async def main() -> None:
    gc.freeze()
    result = {f"{limits} limits": await measured(limits) for limits in (0, 3, 8)}
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    for name, figures in result.items():
        print(name, figures)


if __name__ == "__main__":
    asyncio.run(main())
