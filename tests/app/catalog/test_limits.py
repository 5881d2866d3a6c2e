"""The limits that a gateway knows: complete before the key is, and those of now, whatever changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from hashlib import sha256
from typing import Any

import asyncpg
import pytest_asyncio

from app.catalog.feed import CatalogFeed, Connect
from app.catalog.limits import Limit, Limits
from app.catalog.snapshot import Key, Snapshot
from app.core import ids
from app.core.clock import SystemClock
from app.core.ids import AllowanceId, KeyId, ModelId, ProjectId, TenantId
from billing.quota.model import Rate
from tests.billing.quota.tenancy import Tenancy, each, open_tenancy
from tests.database import Database

TENANT, PROJECT, KEY = TenantId("ten_1"), ProjectId("prj_1"), KeyId("key_1")
MODEL = ids.model_id()
DAY = 86_400_000
CONCURRENT = each("tenant", "concurrent", "running", 8)
TPM = each("key", "tokens", "minute", 40_000, burst=50_000)


def limit(name: str, scope_id: str = TENANT, **more: Any) -> Limit:
    kind = {TENANT: "tenant", PROJECT: "project", KEY: "key"}[scope_id]
    values: dict[str, Any] = {
        "model_id": None,
        "what": "requests",
        "window": "running",
        "amount": 5,
        "burst": None,
        "start_ms": None,
        "end_ms": None,
        "source": "plan:pln_1",
        **more,
    }
    return Limit(AllowanceId(name), kind, scope_id, **values)


def of(book: Limits, *, at_ms: int, model_id: ModelId = MODEL) -> tuple[Limit, ...]:
    return book.of(TENANT, project_id=PROJECT, key_id=KEY, model_id=model_id, at_ms=at_ms)


def held(book: Limits, *, at_ms: int = 0, model_id: ModelId = MODEL) -> list[str]:
    return [found.allowance_id for found in of(book, at_ms=at_ms, model_id=model_id)]


def test_a_request_has_the_limits_of_its_tenant_project_and_key_for_all_models_and_its_own() -> None:
    book, other = Limits(), ids.model_id()
    book.put(
        TENANT,
        version=1,
        limits=[
            limit("key", KEY),
            limit("own", PROJECT, model_id=MODEL),
            limit("other", PROJECT, model_id=other),
            limit("tenant"),
        ],
    )
    assert held(book) == ["tenant", "own", "key"]
    assert held(book, model_id=other) == ["tenant", "other", "key"]
    assert (
        book.of(TENANT, project_id=ProjectId("prj_2"), key_id=KeyId("key_2"), model_id=MODEL, at_ms=0)[
            0
        ].allowance_id
        == "tenant"
    )
    assert book.of(TenantId("ten_2"), project_id=PROJECT, key_id=KEY, model_id=MODEL, at_ms=0) == ()


def test_a_period_begins_at_its_moment_and_the_last_known_one_goes_on() -> None:
    book = Limits()
    days = [limit(f"day{n}", window="day", start_ms=n * DAY, end_ms=(n + 1) * DAY) for n in (1, 2)]
    book.put(TENANT, [days[1], limit("always"), days[0]], version=1)
    assert held(book, at_ms=DAY) == ["day1", "always"]
    assert held(book, at_ms=2 * DAY - 1) == ["day1", "always"]
    assert held(book, at_ms=2 * DAY) == ["day2", "always"]
    assert held(book, at_ms=9 * DAY) == ["day2", "always"]


def test_a_limit_that_begins_with_a_period_to_come_does_not_hold_before() -> None:
    book = Limits()
    book.put(TENANT, [limit("day1", window="day", start_ms=DAY, end_ms=2 * DAY), limit("always")], version=1)
    assert held(book, at_ms=DAY - 1) == ["always"]
    assert held(book, at_ms=DAY) == ["day1", "always"]


def test_what_was_found_is_found_again_until_it_changes() -> None:
    book = Limits()
    book.put(TENANT, [limit("one")], version=1)
    first = of(book, at_ms=1)
    assert of(book, at_ms=2) is first
    book.put_scope(TENANT, KEY, limits=[limit("two", KEY)])
    assert held(book) == ["one", "two"]
    book.put_scope(TENANT, KEY, limits=[])
    assert held(book) == ["one"]
    assert book.count() == 1
    assert book.lacks(TENANT, 2)
    assert not book.lacks(TENANT, 1)


@pytest_asyncio.fixture
async def tenancy(database: Database) -> AsyncIterator[Tenancy]:
    async with open_tenancy(database) as opened:
        yield opened


@asynccontextmanager
async def followed(
    tenancy: Tenancy, *, reload_s: float = 30.0, connect: Connect | None = None
) -> AsyncIterator[Snapshot]:
    snapshot = Snapshot()
    feed = CatalogFeed(
        tenancy.url,
        snapshot=snapshot,
        clock=SystemClock(),
        on_fleet=lambda fleet: None,
        on_allowance=lambda allowance_id: None,
        reload_s=reload_s,
        connect=connect,
    )
    await feed.start()
    try:
        yield snapshot
    finally:
        await feed.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


def amounts(snapshot: Snapshot, key_id: KeyId) -> dict[str, int]:
    key = snapshot.key(sha256(key_id.encode()).digest())
    assert key is not None
    found = snapshot.limits(key, MODEL, at_ms=SystemClock().now_ms())
    return {each.what: each.amount for each in found}


def is_revoked(snapshot: Snapshot, key_id: KeyId) -> bool:
    key = snapshot.key(sha256(key_id.encode()).digest())
    return key is not None and key.revoked_ms is not None


async def test_each_edit_of_limits_is_seen(tenancy: Tenancy) -> None:
    project = await tenancy.project()
    key = await tenancy.key(project)
    plan = await tenancy.plan(CONCURRENT, TPM)
    async with followed(tenancy) as snapshot:
        assert amounts(snapshot, key) == {}
        await tenancy.assign(plan)
        await until(lambda: amounts(snapshot, key) == {"concurrent": 8, "tokens": 40_000})
        await tenancy.replace(plan, CONCURRENT)
        await until(lambda: amounts(snapshot, key) == {"concurrent": 8})
        raised = await tenancy.override(tenancy.tenant_id, each("tenant", "concurrent", "running", 80))
        await until(lambda: amounts(snapshot, key) == {"concurrent": 80})
        await tenancy.revoke(raised)
        await until(lambda: amounts(snapshot, key) == {"concurrent": 8})
        await tenancy.override(tenancy.tenant_id, CONCURRENT, unlimited=True)
        await until(lambda: amounts(snapshot, key) == {})


async def test_a_change_of_which_nothing_was_heard_is_seen_by_the_next_load(tenancy: Tenancy) -> None:
    key = await tenancy.key(await tenancy.project())
    await tenancy.assign(await tenancy.plan(CONCURRENT))
    async with followed(tenancy, reload_s=0.05) as snapshot:
        assert amounts(snapshot, key) == {"concurrent": 8}
        await tenancy.pool.execute("UPDATE allowance SET limit_amount = 99")
        await tenancy.pool.execute("UPDATE tenant_limits SET version = version + 1")
        await until(lambda: amounts(snapshot, key) == {"concurrent": 99})


async def test_a_rate_comes_with_what_its_bucket_does(tenancy: Tenancy) -> None:
    key = await tenancy.key(await tenancy.project())
    await tenancy.assign(await tenancy.plan(TPM))
    async with followed(tenancy) as snapshot:
        known = snapshot.key(sha256(key.encode()).digest())
        assert known is not None
        (found,) = snapshot.limits(known, MODEL, at_ms=SystemClock().now_ms())
        assert (found.rate, found.source[:9]) == (Rate(40_000, 50_000), "plan:pln_")


async def test_a_key_is_never_known_before_its_limits(tenancy: Tenancy) -> None:
    await tenancy.assign(await tenancy.plan(CONCURRENT, TPM))
    async with followed(tenancy) as snapshot:
        naked: list[Key] = []
        put_keys = snapshot.put_keys

        def watch(keys: Any, *, whole: bool) -> None:
            keys = list(keys)
            put_keys(keys, whole=whole)
            naked.extend(key for key in keys if len(snapshot.limits(key, MODEL, at_ms=0)) != 2)

        snapshot.put_keys = watch  # type: ignore[method-assign]
        project = await tenancy.project()
        keys = await asyncio.gather(*(tenancy.key(project) for _ in range(20)))
        await until(lambda: all(snapshot.key(sha256(key.encode()).digest()) for key in keys))
        assert naked == []


async def test_what_ends_by_itself_is_turned_by_any_gateway(tenancy: Tenancy) -> None:
    key = await tenancy.key(await tenancy.project())
    await tenancy.assign(await tenancy.plan(CONCURRENT))
    async with followed(tenancy) as one, followed(tenancy) as other:
        end = await tenancy.now() + timedelta(milliseconds=200)
        await tenancy.override(tenancy.tenant_id, each("tenant", "concurrent", "running", 80), end=end)
        await until(lambda: amounts(one, key) == amounts(other, key) == {"concurrent": 80})
        await until(lambda: amounts(one, key) == amounts(other, key) == {"concurrent": 8})
        assert await tenancy.now() >= end


async def test_what_takes_long_to_turn_holds_up_no_other_change_and_no_start(tenancy: Tenancy) -> None:
    project = await tenancy.project()
    key = await tenancy.key(project)
    await tenancy.assign(await tenancy.plan(CONCURRENT))
    begins = await tenancy.now() + timedelta(milliseconds=50)
    await tenancy.override(tenancy.tenant_id, each("tenant", "concurrent", "running", 80), start=begins)
    owner = await asyncpg.connect(tenancy.owner_url)
    try:
        transaction = owner.transaction()
        await transaction.start()
        await owner.execute("LOCK TABLE allowance IN SHARE MODE")  # whoever turns it has to wait
        async with followed(tenancy) as snapshot:
            assert amounts(snapshot, key) == {"concurrent": 8}
            await tenancy.pool.execute("UPDATE api_key SET revoked_at = now()")
            await until(lambda: is_revoked(snapshot, key))
            assert amounts(snapshot, key) == {"concurrent": 8}
            await transaction.rollback()
            await until(lambda: amounts(snapshot, key) == {"concurrent": 80})
    finally:
        await owner.close()


async def test_many_keys_at_once_are_read_together(tenancy: Tenancy) -> None:
    project = await tenancy.project()
    await tenancy.assign(await tenancy.plan(TPM))
    told: list[str] = []

    class Told(asyncpg.Connection):  # type: ignore[misc]
        async def fetch(self, query: str, *args: Any, **more: Any) -> Any:
            told.append(query)
            return await super().fetch(query, *args, **more)

    async with followed(
        tenancy, connect=lambda: asyncpg.connect(tenancy.url, connection_class=Told)
    ) as snapshot:
        told.clear()
        await tenancy.pool.execute(
            "INSERT INTO api_key (id, tenant_id, project_id, name, digest, prefix, last_four)"
            " SELECT 'key_' || n, $1, $2, 'k', sha256(('key_' || n)::bytea), 'sk-sy-tttt', 'tttt'"
            " FROM generate_series(1, 60) AS n",
            tenancy.tenant_id,
            project,
        )
        await until(lambda: snapshot.key(sha256(b"key_60").digest()) is not None)
        assert all(amounts(snapshot, KeyId(f"key_{n}")) == {"tokens": 40_000} for n in range(1, 61))
        assert len(told) < 20


async def test_a_period_that_nobody_opened_is_open_when_a_gateway_starts(tenancy: Tenancy) -> None:
    key = await tenancy.key(await tenancy.project())
    await tenancy.assign(await tenancy.plan(each("tenant", "requests", "month", 9)))
    owner = await asyncpg.connect(tenancy.owner_url)
    try:
        await owner.execute("DELETE FROM allowance")
        await owner.execute("UPDATE tenant_limits SET next_change_at = now() - interval '1 month'")
    finally:
        await owner.close()
    async with followed(tenancy) as snapshot:
        assert amounts(snapshot, key) == {"requests": 9}


async def test_a_plans_price_book_is_its_tenants_unless_they_have_their_own(tenancy: Tenancy) -> None:
    for name in ("plan", "own"):
        await tenancy.pool.execute(
            "INSERT INTO price_book (id, name, currency) VALUES ($1, $1, 'EUR')", f"pbk_{name}"
        )
    await tenancy.pool.execute(
        "INSERT INTO plan (id, name, currency, price_book_id) VALUES ('pln_1', 'p', 'EUR', 'pbk_plan')"
    )

    def book() -> str | None:
        tenant = snapshot.tenant(tenancy.tenant_id)
        return None if tenant is None else snapshot.price_book(tenant)

    async with followed(tenancy) as snapshot:
        await tenancy.assign(type("Named", (), {"id": "pln_1"})())  # type: ignore[arg-type]
        await until(lambda: book() == "pbk_plan")
        await tenancy.pool.execute("UPDATE tenant SET price_book_id = 'pbk_own'")
        await until(lambda: book() == "pbk_own")


async def test_projects_that_clamp_and_what_suspension_does_are_known(tenancy: Tenancy) -> None:
    project = await tenancy.project()
    async with followed(tenancy) as snapshot:
        assert not snapshot.clamps_output(project)
        await tenancy.pool.execute("UPDATE project SET clamp_output = true")
        await tenancy.pool.execute("UPDATE tenant SET on_suspend = 'cut'")
        await until(lambda: snapshot.clamps_output(project))
        await until(
            lambda: (found := snapshot.tenant(tenancy.tenant_id)) is not None and found.on_suspend == "cut"
        )
