"""The outbox: claimed by one, tried for a day, dead and shown then; a slow receiver holds up no other."""

from __future__ import annotations

import asyncio

import pytest

from app.core.clock import from_ms
from app.core.errors import Conflict, Rejected
from app.core.ids import TenantId
from billing.alerts import endpoints, outbox, watch
from billing.alerts.endpoints import MOST_ENDPOINTS
from billing.alerts.model import Attempt, Delivery, Endpoint, Outcome
from billing.alerts.retry import ATTEMPTS
from tests.billing.alerts.tower import Tower

FAILED = Outcome(status=500, error="it answered 500")
TAKEN = Outcome(status=204)


async def claim(tower: Tower, *, limit: int = 64) -> list[Attempt]:
    async with tower.engine.begin() as connection:
        return await outbox.claim(connection, now=tower.now, limit=limit)


async def record(tower: Tower, attempt: Attempt, outcome: Outcome) -> str:
    async with tower.engine.begin() as connection:
        return await outbox.record(connection, attempt, outcome=outcome, now=tower.now, draw=0)


async def send_test(tower: Tower, endpoint: Endpoint) -> Delivery:
    async with tower.engine.begin() as connection:
        return await outbox.send_test(connection, endpoint, now=tower.now)


async def retry(tower: Tower, delivery: Delivery, *, within: TenantId | None = None) -> Delivery:
    async with tower.engine.begin() as connection:
        return await outbox.retry(connection, delivery.id, within=within, now=tower.now)


async def alarm(tower: Tower, *, tenant: TenantId | None = None) -> None:
    """One alert of a fresh allowance."""
    facts = {} if tenant is None else {"tenant_id": tenant}
    scope_id = f"tsk_{len(await tower.alerts())}"
    one = await tower.allowance(10, scope_kind="task", scope_id=scope_id, **facts)
    await tower.lend(await tower.desk.incarnation(), one, 5)
    assert await tower.look() == 1


async def test_a_delivery_is_claimed_by_one_of_many(tower: Tower) -> None:
    await tower.endpoint()
    await alarm(tower)
    claims = await asyncio.gather(*(claim(tower) for _ in range(5)))
    assert sorted(map(len, claims)) == [0, 0, 0, 0, 1]


async def test_a_delivery_whose_worker_died_is_claimed_again_under_the_same_id(tower: Tower) -> None:
    await tower.endpoint()
    await alarm(tower)
    (first,) = await claim(tower)
    tower.clock.advance(59)
    assert await claim(tower) == []
    tower.clock.advance(2)
    (second,) = await claim(tower)
    assert second.delivery.id == first.delivery.id
    assert await record(tower, first, FAILED) == "pending"  # says nothing of the second attempt
    (delivery,) = await tower.deliveries()
    assert (delivery.last_status, delivery.attempts) == (None, 2)
    assert await record(tower, first, TAKEN) == "delivered"


async def test_failures_wait_ever_longer_and_end_dead_with_what_went_wrong(tower: Tower) -> None:
    await tower.endpoint()
    await alarm(tower)
    waits = []
    for _ in range(ATTEMPTS):
        (attempt,) = await claim(tower)
        state = await record(tower, attempt, FAILED)
        (delivery,) = await tower.deliveries()
        waits.append((delivery.next_at - tower.now).total_seconds())
        assert await claim(tower) == []
        tower.clock.advance(waits[-1])
    assert state == "dead"
    assert waits[:-1] == sorted(waits[:-1])
    (delivery,) = await tower.deliveries(status="dead")
    assert (delivery.last_status, delivery.last_error) == (500, "it answered 500")
    again = await retry(tower, delivery)
    assert (again.id, again.status, again.attempts) == (delivery.id, "pending", 0)
    (attempt,) = await claim(tower)
    assert await record(tower, attempt, TAKEN) == "delivered"
    with pytest.raises(Conflict):
        await retry(tower, delivery)


async def test_a_receiver_that_is_gone_disables_its_endpoint_and_ends_what_waits(tower: Tower) -> None:
    endpoint = await tower.endpoint()
    await alarm(tower)
    await alarm(tower)
    first, _ = await claim(tower)
    gone = Outcome(status=410, error="it answered 410", gone=True)
    assert await record(tower, first, gone) == "dead"
    assert [each.status for each in await tower.deliveries()] == ["dead", "dead"]
    async with tower.engine.begin() as connection:
        disabled = await endpoints.get_endpoint(connection, endpoint.id, within=None)
        assert (disabled.status, disabled.disabled_because) == ("disabled", outbox.GONE)
    delivery = (await tower.deliveries())[0]
    with pytest.raises(Conflict):
        await retry(tower, delivery)
    async with tower.engine.begin() as connection:
        active = {"status": "active"}
        enabled = await endpoints.change_endpoint(connection, endpoint.id, changes=active, now=tower.now)
    assert enabled.disabled_because is None
    assert (await retry(tower, delivery)).status == "pending"


async def test_a_removed_endpoint_loses_its_secret_and_gets_nothing(tower: Tower) -> None:
    endpoint = await tower.endpoint()
    await send_test(tower, endpoint)
    async with tower.engine.begin() as connection:
        await endpoints.remove_endpoint(connection, endpoint.id, now=tower.now)
    assert await claim(tower) == []
    assert await tower.desk.pool.fetchval("SELECT count(*) FROM alert_secret") == 0
    assert [each.status for each in await tower.deliveries()] == ["dead"]
    async with tower.engine.begin() as connection:
        with pytest.raises(Rejected):
            await endpoints.get_endpoint(connection, endpoint.id, within=None)


async def test_an_endpoint_with_a_backlog_gives_way_to_others(tower: Tower) -> None:
    slow = await tower.endpoint()
    for _ in range(6):
        await alarm(tower)
    other = await tower.tenant()
    quick = await tower.endpoint(tenant=other)
    tower.clock.advance(1)
    await alarm(tower, tenant=other)
    claimed = [attempt.delivery.endpoint_id for attempt in await claim(tower, limit=2)]
    assert sorted(claimed) == sorted([slow.id, quick.id])
    assert len(await claim(tower)) == outbox.AT_ONCE_OF_ENDPOINT


async def test_one_test_of_an_endpoint_waits_at_a_time(tower: Tower) -> None:
    endpoint = await tower.endpoint()
    await send_test(tower, endpoint)
    with pytest.raises(Conflict):
        await send_test(tower, endpoint)
    (attempt,) = await claim(tower)
    assert attempt.alert is None
    await record(tower, attempt, TAKEN)
    await send_test(tower, endpoint)


async def test_the_outbox_says_how_much_waits_and_for_how_long(tower: Tower) -> None:
    endpoint = await tower.endpoint()
    await send_test(tower, endpoint)
    began_ms = tower.clock.now_ms()
    tower.clock.advance(30)
    async with tower.engine.connect() as connection:
        found = await outbox.waiting(connection)
    assert (found.pending, found.dead, found.oldest_at) == (1, 0, from_ms(began_ms))


async def test_a_tenant_has_a_bounded_number_of_endpoints(tower: Tower) -> None:
    made = [await tower.endpoint() for _ in range(MOST_ENDPOINTS)]
    with pytest.raises(Conflict):
        await tower.endpoint()
    async with tower.engine.begin() as connection:
        await endpoints.remove_endpoint(connection, made[0].id, now=tower.now)
    await tower.endpoint()


async def test_nothing_of_another_tenant_is_found(tower: Tower) -> None:
    endpoint = await tower.endpoint()
    delivery = await send_test(tower, endpoint)
    other = await tower.tenant()
    with pytest.raises(Rejected):
        await retry(tower, delivery, within=other)
    async with tower.engine.connect() as connection:
        with pytest.raises(Rejected):
            await endpoints.get_endpoint(connection, endpoint.id, within=other)
        with pytest.raises(Rejected):
            await outbox.get_delivery(connection, delivery.id, within=other)


async def test_an_attempt_never_shows_its_secret(tower: Tower) -> None:
    await send_test(tower, await tower.endpoint())
    (attempt,) = await claim(tower)
    assert attempt.secret is not None
    assert repr(attempt.secret) not in repr(attempt)


async def test_workers_that_record_for_one_endpoint_in_any_order_never_lock_each_other_out(
    tower: Tower,
) -> None:
    await tower.endpoint()
    for _ in range(4):
        await alarm(tower)
    claimed = await claim(tower)
    gone = Outcome(status=410, error="it answered 410", gone=True)

    async def record_all(attempts: list[Attempt]) -> None:
        async with tower.engine.begin() as connection:
            for attempt in attempts:
                await outbox.record(connection, attempt, outcome=gone, now=tower.now, draw=0)

    await asyncio.gather(*(record_all(each) for each in (claimed, claimed[::-1]) * 4))
    assert {each.status for each in await tower.deliveries()} == {"dead"}


async def test_nothing_waits_for_an_endpoint_that_is_disabled_meanwhile(tower: Tower) -> None:
    """An alert that is addressed beside the disabling either finds it disabled or is ended by it."""
    wallets = [await tower.allowance(10, scope_kind="task", scope_id=f"tsk_{number}") for number in range(8)]
    gateway = await tower.desk.incarnation()
    for wallet in wallets:
        await tower.lend(gateway, wallet, 5)
    endpoint = await tower.endpoint()

    async def disable() -> None:
        async with tower.engine.begin() as connection:
            disabled = {"status": "disabled"}
            await endpoints.change_endpoint(connection, endpoint.id, changes=disabled, now=tower.now)

    async def look(number: int) -> None:
        async with tower.engine.begin() as connection:
            await watch.look(connection, [wallets[number]], now=tower.now)

    await asyncio.gather(*(look(number) for number in range(4)), disable(), *map(look, range(4, 8)))
    assert len(await tower.alerts()) == 8
    assert not await tower.deliveries(status="pending")
