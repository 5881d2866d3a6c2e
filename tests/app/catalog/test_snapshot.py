"""What the data plane holds of the catalogue, as it is loaded from PostgreSQL and kept up to date."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from app.catalog.feed import CatalogFeed
from app.catalog.snapshot import Fleet, Key, Snapshot, Tenant
from app.core import ids
from app.core.clock import SystemClock
from app.core.ids import AllowanceId
from billing.rating.model import Rates
from tests.app.gateway.house import MODEL, PRICES, Seeded, add_backend, execute, seed
from tests.database import Database


def _key(key_id: str, digest: bytes) -> Key:
    return Key(ids.KeyId(key_id), ids.tenant_id(), ids.project_id(), digest, frozenset(), None, None, None)


def test_a_key_that_changes_its_digest_is_found_by_the_new_one_alone() -> None:
    snapshot = Snapshot()
    snapshot.put_keys([_key("key_1", b"old"), _key("key_2", b"other")], whole=True)
    snapshot.drop_key(ids.KeyId("key_1"))
    snapshot.put_keys([_key("key_1", b"new")], whole=False)
    assert snapshot.key(b"old") is None
    assert snapshot.key(b"new") is not None
    assert snapshot.key(b"other") is not None


def test_a_whole_load_forgets_what_is_gone() -> None:
    snapshot = Snapshot()
    tenant = Tenant(ids.tenant_id(), "active", "USD", None, AllowanceId("alw_1"))
    snapshot.put_keys([_key("key_1", b"a")], whole=True)
    snapshot.put_tenants([tenant], whole=True)
    snapshot.put_keys([], whole=True)
    snapshot.put_tenants([], whole=True)
    assert snapshot.key(b"a") is None
    assert snapshot.tenant(tenant.tenant_id) is None


@asynccontextmanager
async def _fed(database: Database) -> AsyncIterator[tuple[Seeded, Snapshot, list[Fleet], list[str]]]:
    seeded, snapshot, fleets, noticed = await seed(database, balance=5), Snapshot(), [], []  # type: ignore[var-annotated]
    feed = CatalogFeed(
        database.app_url,
        snapshot=snapshot,
        clock=SystemClock(),
        on_fleet=fleets.append,
        on_allowance=noticed.append,
    )
    await feed.start()
    try:
        yield seeded, snapshot, fleets, noticed
    finally:
        await feed.close()


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(2):
        while not condition():
            await asyncio.sleep(0.01)


async def test_the_first_load_has_everything(database: Database) -> None:
    async with _fed(database) as (seeded, snapshot, fleets, _):
        model = snapshot.model(MODEL)
        tenant = snapshot.tenant(seeded.tenant_id)
        assert model is not None
        assert tenant is not None
        assert (model.context_limit, model.max_output_tokens, model.default_output_tokens) == (4096, 1024, 64)
        book = snapshot.price_book(tenant)
        assert book == seeded.book_id
        pinned = snapshot.fleet.schedule.pin(book, model.model_id, at_ms=SystemClock().now_ms())
        assert pinned is not None
        assert pinned == (seeded.version_id, Rates.of(PRICES))
        assert tenant.wallet_allowance_id is not None
        assert fleets == [snapshot.fleet]
        assert snapshot.loaded_ms is not None


async def test_backends_come_drain_and_go(database: Database) -> None:
    async with _fed(database) as (seeded, snapshot, _, _):
        backend_id = await add_backend(database, seeded, "http://127.0.0.1:9", engine="sglang", served="x")
        await _until(lambda: len(snapshot.fleet.backends) == 1)
        (backend,) = snapshot.fleet.backends
        assert (backend.backend_id, backend.engine, backend.draining) == (backend_id, "sglang", False)
        await execute(database, "UPDATE backend SET weight = 0")
        await _until(lambda: snapshot.fleet.backends[0].draining)
        await execute(database, "UPDATE backend SET status = 'removed'")
        await _until(lambda: snapshot.fleet.backends == ())


async def test_limits_and_recalls_are_passed_on(database: Database) -> None:
    async with _fed(database) as (seeded, snapshot, _, noticed):
        tenant = snapshot.tenant(seeded.tenant_id)
        assert tenant is not None
        await execute(database, "SELECT pg_notify('steelyard_changes', 'allowance:' || id) FROM allowance")
        await _until(lambda: noticed == [tenant.wallet_allowance_id])


async def test_a_tenants_change_is_applied_by_its_id(database: Database) -> None:
    async with _fed(database) as (seeded, snapshot, fleets, _):
        await execute(database, "UPDATE tenant SET status = 'suspended' WHERE id = $1", seeded.tenant_id)
        await _until(
            lambda: (found := snapshot.tenant(seeded.tenant_id)) is not None and found.status == "suspended"
        )
        assert len(fleets) == 1
