"""Prices: drafted, published as full sets, frozen; unknown is never zero."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.app.control.world import METERS, World

LIMITS = {"context_limit": 8192, "max_output_tokens": 4096, "default_output_tokens": 512}
NOW = "2026-09-21T14:13:20Z"


async def _model(world: World, name: str) -> dict[str, Any]:
    return await world.made("/models", {"name": name, **LIMITS})


async def _book(world: World, name: str = "Standard", **facts: Any) -> dict[str, Any]:
    return await world.made("/price-books", {"name": name, "currency": "USD", "is_default": True, **facts})


async def _draft(world: World, book: dict[str, Any], *models: str, price: str = "0.54") -> str:
    version = await world.made(f"/price-books/{book['id']}/versions", {"note": "list"})
    await world.put_prices(version["id"], *models, price=price)
    return str(version["id"])


async def _publish(world: World, version_id: str, **facts: str) -> Any:
    return await world.operator.post(f"/api/v1/price-versions/{version_id}/publish", json=facts)


async def test_prices_come_back_exactly_as_they_were_given(world: World) -> None:
    await _model(world, "a")
    book = await _book(world)
    version = await world.made(f"/price-books/{book['id']}/versions")
    given = dict(zip(METERS, ("0.54", "0.000001", "0", "1000000"), strict=True))
    prices = [{"model": "a", "meter": meter, "price": price} for meter, price in given.items()]
    path = f"/api/v1/price-versions/{version['id']}"
    assert (await world.operator.put(f"{path}/prices", json={"prices": prices})).status_code == 200
    shown = (await world.operator.get(path)).json()
    assert {each["meter"]: each["price"] for each in shown["prices"]} == given
    assert {each["model"] for each in shown["prices"]} == {"a"}


@pytest.mark.parametrize("price", ["-1", "0.0000001", "1e3", "1000000.000001", "NaN", "", " 1", "١", 0.54])
async def test_what_is_no_exact_price_is_refused(world: World, price: Any) -> None:
    await _model(world, "a")
    book = await _book(world)
    version = await world.made(f"/price-books/{book['id']}/versions")
    body = {"prices": [{"model": "a", "meter": "input", "price": price}]}
    answer = await world.operator.put(f"/api/v1/price-versions/{version['id']}/prices", json=body)
    assert answer.status_code == 400


async def test_a_model_without_a_price_of_each_class_is_not_published(world: World) -> None:
    model = await _model(world, "a")
    path = f"/api/v1/models/{model['id']}/publish"
    assert (await world.operator.post(path)).json()["error"]["code"] == "price_missing"
    book = await _book(world)
    refused = await world.operator.post(path)
    assert len(refused.json()["error"]["missing"]) == len(METERS)
    await _publish(world, await _draft(world, book, "a"))
    assert (await world.operator.post(path)).json()["status"] == "published"
    assert (await world.operator.post(path)).json()["status"] == "published"


async def test_every_default_book_must_price_a_model(world: World) -> None:
    model = await _model(world, "a")
    await _publish(world, await _draft(world, await _book(world), "a"))
    euro = await _book(world, "Euro", currency="EUR")
    answer = await world.operator.post(f"/api/v1/models/{model['id']}/publish")
    missing = answer.json()["error"]["missing"]
    assert {each["price_book_id"] for each in missing} == {euro["id"]}


async def test_a_version_that_starts_later_does_not_price_a_model_now(world: World) -> None:
    model = await _model(world, "a")
    book = await _book(world)
    version = await _draft(world, book, "a")
    await _publish(world, version, effective_from="2026-12-01T00:00:00Z")
    path = f"/api/v1/models/{model['id']}/publish"
    assert (await world.operator.post(path)).status_code == 409


async def test_a_version_must_price_all_that_is_on_offer(world: World) -> None:
    await world.priced_model("a")
    await _model(world, "b")
    book = (await world.operator.get("/api/v1/price-books")).json()["data"][0]
    world.clock.advance(1)
    answer = await _publish(world, await _draft(world, book, "b"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "price_missing")
    assert (await _publish(world, await _draft(world, book, "a", "b"))).status_code == 200


async def test_a_version_with_a_class_missing_or_with_nothing_is_not_published(world: World) -> None:
    await _model(world, "a")
    book = await _book(world)
    version = await _draft(world, book)
    assert (await _publish(world, version)).status_code == 409
    body = {"prices": [{"model": "a", "meter": meter, "price": "1"} for meter in METERS[:3]]}
    await world.operator.put(f"/api/v1/price-versions/{version}/prices", json=body)
    answer = await _publish(world, version)
    assert [each["meter"] for each in answer.json()["error"]["missing"]] == [METERS[3]]


async def test_a_published_version_is_frozen_and_ends_where_its_successor_starts(world: World) -> None:
    await _model(world, "a")
    book = await _book(world)
    first = await _draft(world, book, "a")
    published = (await _publish(world, first)).json()
    assert (published["status"], published["effective_from"], published["effective_to"]) == (
        "published",
        NOW,
        None,
    )
    body = {"prices": [{"model": "a", "meter": meter, "price": "9"} for meter in METERS]}
    assert (await world.operator.put(f"/api/v1/price-versions/{first}/prices", json=body)).status_code == 409
    assert (await _publish(world, first)).status_code == 409
    second = await _draft(world, book, "a", price="0.6")
    start = "2026-10-01T00:00:00Z"
    assert (await _publish(world, second, effective_from=start)).status_code == 200
    ended = (await world.operator.get(f"/api/v1/price-versions/{first}")).json()
    assert ended["effective_to"] == start
    assert {each["price"] for each in ended["prices"]} == {"0.54"}


@pytest.mark.parametrize("start", ["2026-09-21T14:13:19Z", "2020-01-01T00:00:00Z"])
async def test_no_version_starts_in_the_past(world: World, start: str) -> None:
    await _model(world, "a")
    version = await _draft(world, await _book(world), "a")
    assert (await _publish(world, version, effective_from=start)).status_code == 409


async def test_a_moment_without_a_zone_is_refused(world: World) -> None:
    await _model(world, "a")
    version = await _draft(world, await _book(world), "a")
    assert (await _publish(world, version, effective_from="2026-12-01T00:00:00")).status_code == 400


async def test_no_version_slips_in_before_a_scheduled_one(world: World) -> None:
    await _model(world, "a")
    book = await _book(world)
    scheduled, sooner = [await _draft(world, book, "a") for _ in range(2)]
    await _publish(world, scheduled, effective_from="2026-12-01T00:00:00Z")
    assert (await _publish(world, sooner)).status_code == 409


async def test_of_two_versions_published_at_once_for_one_moment_one_rules(world: World) -> None:
    await _model(world, "a")
    book = await _book(world)
    drafts = [await _draft(world, book, "a") for _ in range(2)]
    answers = await asyncio.gather(*(_publish(world, draft) for draft in drafts))
    assert sorted(answer.status_code for answer in answers) == [200, 409]


async def test_a_model_and_prices_without_it_are_never_published_both(world: World) -> None:
    await world.priced_model("a")
    model = await _model(world, "b")
    book = (await world.operator.get("/api/v1/price-books")).json()["data"][0]
    world.clock.advance(1)
    await _publish(world, await _draft(world, book, "a", "b"))
    for _ in range(4):
        world.clock.advance(1)
        draft = await _draft(world, book, "a")
        offer, prices = await asyncio.gather(
            world.operator.post(f"/api/v1/models/{model['id']}/publish"), _publish(world, draft)
        )
        assert sorted((offer.status_code, prices.status_code)) == [200, 409]
        await world.operator.patch(f"/api/v1/models/{model['id']}", json={"status": "retired"})
        world.clock.advance(1)
        await _publish(world, await _draft(world, book, "a", "b"))


async def test_a_tenant_sees_the_book_that_rules_it_without_drafts(world: World) -> None:
    await world.priced_model("a")
    own = await world.made("/price-books", {"name": "Acme terms", "currency": "USD"})
    draft = await _draft(world, own, "a")
    acme, other = await world.tenant("Acme", price_book_id=own["id"]), await world.tenant("Other")
    viewer, stranger = [await world.member("viewer", each["id"]) for each in (acme, other)]
    seen = (await viewer.get("/api/v1/price-books")).json()["data"]
    assert [book["name"] for book in seen] == ["Acme terms"]
    assert (await viewer.get(f"/api/v1/price-versions/{draft}")).status_code == 404
    await _publish(world, draft)
    assert (await viewer.get(f"/api/v1/price-versions/{draft}")).status_code == 200
    assert (await stranger.get(f"/api/v1/price-versions/{draft}")).status_code == 404
    assert [book["name"] for book in (await stranger.get("/api/v1/price-books")).json()["data"]] == [
        "Standard"
    ]


async def test_a_tenants_book_is_in_its_currency(world: World) -> None:
    euro = await _book(world, "Euro", currency="EUR")
    body = {"name": "Acme", "currency": "USD", "price_book_id": euro["id"]}
    answer = await world.operator.post("/api/v1/tenants", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "price_book_id")


async def test_an_unknown_model_has_no_price_and_a_price_stands_once(world: World) -> None:
    await _model(world, "a")
    version = await _draft(world, await _book(world))
    path = f"/api/v1/price-versions/{version}/prices"
    price = {"model": "a", "meter": "input", "price": "1"}
    unknown = await world.operator.put(path, json={"prices": [price | {"model": "nobody"}]})
    assert unknown.status_code == 400
    assert (await world.operator.put(path, json={"prices": [price, price]})).status_code == 409
