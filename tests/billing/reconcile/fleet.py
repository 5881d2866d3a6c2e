"""A backend of a shop, its readings by the minute of a day, and the requests that it served."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any

import msgspec
from sqlalchemy import text

from app.core.clock import from_ms
from app.core.ids import BackendId, DeploymentId
from billing.journal.join import Charge
from billing.journal.model import Admitted, Settled, encode
from billing.journal.posting import park
from billing.metering.model import NOTHING, Outcome, Usage, UsageSource
from billing.reconcile import engines, repository
from billing.reconcile.days import bounds, day_of
from billing.reconcile.model import Counters, Engine, EngineDay, EngineMeter, Reading
from tests.billing.journal.shop import NOW_MS, Shop, settled
from tests.billing.reconcile.posted import post

TODAY = day_of(from_ms(NOW_MS))
NO_LAG = timedelta(0)
SLACK = timedelta(seconds=2)


def at(minute: float, *, day: date = TODAY) -> datetime:
    """A moment of the day, by minutes from its beginning."""
    return bounds(day)[0] + timedelta(minutes=minute)


@dataclass
class Fleet:
    """Backends of the shop's one deployment."""

    shop: Shop
    engines: list[Engine] = field(default_factory=list)

    async def add(self, name: str = "bck_one", *, engine: str = "vllm") -> BackendId:
        """A backend in the catalogue."""
        statements = (
            f"INSERT INTO deployment (id, model_id) VALUES ('dep_one', '{self.shop.catalogue.model_id}') "
            "ON CONFLICT DO NOTHING",
            "INSERT INTO backend (id, deployment_id, base_url, engine, served_model) "
            f"VALUES ('{name}', 'dep_one', 'http://{name}', '{engine}', 'small')",
        )
        async with self.shop.owner.begin() as connection:
            for statement in statements:
                await connection.execute(text(statement.replace(":", "\\:")))
        backend_id, deployment_id = BackendId(name), DeploymentId("dep_one")
        model_id = self.shop.catalogue.model_id
        self.engines.append(
            Engine(backend_id, deployment_id, model_id, "small", engine, f"http://{name}", "small", False)
        )
        return backend_id

    async def read(
        self,
        minute: float,
        *,
        prompt: int | None,
        generated: int | None,
        process: str | None = None,
        backend: str = "bck_one",
        day: date = TODAY,
    ) -> None:
        """What a backend says at a minute of the day."""
        reading = Reading(at(minute, day=day), Counters(process, prompt=prompt, generated=generated))
        async with self.shop.engine.begin() as connection:
            await repository.keep_readings(connection, {BackendId(backend): reading})

    async def serve(
        self,
        minute: float,
        *,
        prompt: int = 100,
        output: int = 10,
        seconds: float = 1.5,
        choices: int = 1,
        outcome: Outcome = Outcome.COMPLETED,
        source: UsageSource = UsageSource.ENGINE,
        parked: bool = False,
        **ending: Any,
    ) -> str:
        """A request admitted at a minute of the day that ran so long, posted or parked; returns its id."""
        at_ms = round(at(minute).timestamp() * 1000)
        plain = self.shop.catalogue.admitted(at_ms=at_ms, input_bound=1000, output_bound=500)
        admitted = msgspec.structs.replace(plain, choices=choices)
        usage = NOTHING if source is UsageSource.UNKNOWN else Usage(input=prompt, output=output)
        end = settled(
            admitted,
            usage,
            outcome=outcome,
            source=source,
            **{"at_ms": at_ms + round(seconds * 1000), **ending},
        )
        await (self._park(admitted, end) if parked else post(self.shop, [(admitted, end)]))
        return admitted.request_id

    async def _park(self, admitted: Admitted, end: Settled) -> None:
        entry = Charge(0, 1, admitted, end, encode(admitted), encode(end))
        incarnation_id = await self.shop.incarnation()
        async with self.shop.engine.begin() as connection:
            await park(
                connection, [(entry, "no such price")], incarnation_id=incarnation_id, now=from_ms(end.at_ms)
            )

    async def compare(
        self, *, day: date = TODAY, now: datetime | None = None, lag: timedelta = NO_LAG
    ) -> dict[tuple[str, EngineMeter], EngineDay]:
        """Each backend's day by meter, long after it by default."""
        async with self.shop.engine.connect() as connection:
            days = await engines.compare(
                connection,
                day,
                engines=self.engines,
                now=now or at(0, day=day) + timedelta(days=3),
                lag=lag,
                slack=SLACK,
            )
        return {(each.backend_id, each.meter): each for each in days}

    async def one(self, meter: EngineMeter = EngineMeter.GENERATED, **asked: Any) -> EngineDay:
        """The day of the first backend."""
        return (await self.compare(**asked))[BackendId("bck_one"), meter]


def kinds(day: EngineDay) -> dict[str, int]:
    """How many requests each kind of share has."""
    return {share.kind: share.requests for share in day.explained}
