"""One wallet, two gateways: what is spent and held never exceeds it, and all that it covers is admitted."""

from __future__ import annotations

import asyncio

import pytest

from app.core.money import parse_picos
from tests.faults.audit import assert_books_are_true
from tests.faults.buyer import Buyer, new_buyer
from tests.faults.client import Kind, Load, Received
from tests.faults.stack import GATEWAYS, Stack, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

COVERED = 7
LONG = 6000
"""Tokens of an answer that outlasts the test."""
SHORT = 20


@pytest.fixture
async def buyer(stack: Stack) -> Buyer:
    return await new_buyer(stack)


def _crowd(buyer: Buyer) -> Load:
    """Far more callers than the wallet covers, who ask for long streams."""
    url = buyer.stack.addresses.gateway_url
    return Load(url, key=buyer.key, callers=3 * COVERED, sizes=(LONG,), kinds=(Kind.STREAM,))


async def _in_flight(stack: Stack) -> int:
    """Admitted requests that run now, of both gateways."""
    pages = [await stack.metrics(name) for name in GATEWAYS]
    return int(sum(page.get("steelyard_requests_in_flight", 0) for page in pages))


async def _fills(buyer: Buyer) -> None:
    """Wait until as many run as are covered; never may there be more, nor more lent than there is."""

    async def look() -> bool:
        running, available = await _in_flight(buyer.stack), await buyer.available()
        assert running <= COVERED
        assert available >= 0
        return running == COVERED

    await until(look)


async def test_a_wallet_for_some_requests_admits_exactly_those_and_again_after_a_death(buyer: Buyer) -> None:
    stack = buyer.stack
    needed = await buyer.needs(LONG, Kind.STREAM)
    await buyer.gets(COVERED * needed, reference="test")
    load = _crowd(buyer)
    async with load.running(to_the_end=False):
        await _fills(buyer)
        was = stack.kill("gateway-1")
        await stack.back("gateway-1", was=was)
        await _fills(buyer)
    assert {one.status for one in load.received if one.status != 200} <= {429, None}
    assert all(_lacked(one) for one in load.received if one.status == 429)
    await assert_books_are_true(stack, load.received)


async def test_a_wallet_is_used_up_to_the_last_request_that_it_covers(buyer: Buyer) -> None:
    stack = buyer.stack
    needed = await buyer.needs(SHORT, Kind.WHOLE)
    await buyer.gets(COVERED * needed, reference="test")
    asked_before = await _asks(stack)
    load = buyer.load()
    await asyncio.gather(*(_drain(load) for _ in range(4)))
    assert all(_lacked(one) for one in load.received if one.status == 429)
    books = await assert_books_are_true(stack, load.received)
    assert 0 <= await buyer.posted() < needed
    mine = [event for event in books.events.values() if event["tenant_id"] == buyer.tenant_id]
    assert len({event["incarnation_id"] for event in mine}) == len(GATEWAYS), "both gateways sold of it"
    assert await _asks(stack) > asked_before, "what one had free, the other asked for"


async def _drain(load: Load) -> None:
    """Buy until the wallet is told to be empty for good."""
    while True:
        [one] = await load.burst(1, max_tokens=SHORT)
        if one.status == 429 and one.error is not None and "retry_after_s" not in one.error:
            return


async def _asks(stack: Stack) -> int:
    pages = [await stack.metrics(name) for name in GATEWAYS]
    return int(sum(page["steelyard_quota_asks_total"] for page in pages))


def _lacked(refused: Received) -> bool:
    """The refusal's own numbers say that it was right."""
    assert refused.error is not None
    lacks = parse_picos(refused.error["available"]) < parse_picos(refused.error["needed"])
    return lacks and refused.error["code"] == "balance_too_low"
