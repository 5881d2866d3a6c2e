"""`kill -9` for each process under load: every request ends once, visibly, and the books stay true."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tests.faults.audit import assert_books_are_true
from tests.faults.client import Load
from tests.faults.stack import GATEWAYS, Stack, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

BESIDE = ("settler", "control", "worker", "valkey")
"""What no request passes."""
FLOWING = 12
"""Completed requests after which the load counts as flowing."""


def _load(stack: Stack) -> Load:
    return Load(stack.addresses.gateway_url, key=stack.key)


async def _serves_again(stack: Stack, name: str) -> None:
    """Wait until the gateway has served requests in its new life."""

    async def look() -> bool:
        samples = await stack.metrics(name)
        return any(sample.startswith("steelyard_requests_total{") for sample in samples)

    await until(look)


@pytest.mark.parametrize("name", GATEWAYS)
async def test_a_killed_gateway_cuts_its_requests_alone_and_each_ends_once(stack: Stack, name: str) -> None:
    load = _load(stack)
    async with load.running():
        await load.completes(FLOWING)
        was = stack.kill(name)
        await load.completes(FLOWING)
        await stack.back(name, was=was)
        await _serves_again(stack, name)
        await load.completes(FLOWING)
    assert all(one.cut for one in load.failures()), "the other gateway serves on as if nothing were"
    books = await assert_books_are_true(stack, load.received)
    cut = [one.request_id for one in load.failures() if one.request_id in books.events]
    assert {books.events[request_id]["outcome"] for request_id in cut} <= {"lost", "completed"}


async def test_killing_what_no_request_passes_harms_no_request(stack: Stack) -> None:
    load = _load(stack)
    async with load.running():
        await load.completes(FLOWING)
        were = {name: stack.kill(name) for name in BESIDE}
        await asyncio.gather(*(stack.back(name, was=was) for name, was in were.items()))
        await load.completes(FLOWING)
    assert load.failures() == []
    await assert_books_are_true(stack, load.received)


async def test_a_killed_database_loses_nothing_that_was_posted_or_lent(stack: Stack) -> None:
    load = _load(stack)
    async with load.running():
        await load.completes(FLOWING)
        was = stack.kill("postgres")
        await stack.back("postgres", was=was)
        await load.completes(FLOWING)
    assert {one.status for one in load.failures()} <= {503}, "refused for want of a lease, with a word"
    await assert_books_are_true(stack, load.received)


async def test_a_killed_engine_fails_its_requests_in_words_and_bills_none_of_them(stack: Stack) -> None:
    load = _load(stack)
    async with load.running():
        await load.completes(FLOWING)
        await stack.engine.gather()
        stack.engine.kill()
        stack.engine.start()
        await load.completes(FLOWING)
    assert load.failures(), "some were under way"
    assert all(one.error is not None for one in load.failures())
    books = await assert_books_are_true(stack, load.received)
    events = [books.events[one.request_id] for one in load.failures() if one.request_id in books.events]
    assert {event["outcome"] for event in events} <= {"engine_failed"}
    assert sum(int(event["cost"]) for event in events) == 0


async def test_a_killed_supervisor_takes_all_down_and_a_second_up_goes_on(stack: Stack) -> None:
    load = _load(stack)
    async with load.running():
        await load.completes(FLOWING)
        stack.kill_supervisor()
        await stack.orphaned()
        await asyncio.to_thread(stack.up)
        await load.completes(FLOWING)
    await assert_books_are_true(stack, load.received)


@pytest.mark.slow
async def test_gateways_killed_amid_many_admissions_leave_no_hold_and_no_doubt(stack: Stack) -> None:
    url, key = stack.addresses.gateway_url, stack.key
    load = Load(url, key=key, callers=40, sizes=(1, 2))
    async with load.running():
        for name in (*GATEWAYS, *GATEWAYS):
            await load.completes(5 * FLOWING)
            await stack.back(name, was=stack.kill(name))
    await assert_books_are_true(stack, load.received)


@pytest.mark.slow
async def test_a_storm_of_kills_leaves_the_books_true(stack: Stack) -> None:
    """Each process dies twice, the next one soon after the last: often before that one is back."""
    load = _load(stack)
    victims = (*GATEWAYS, *BESIDE, "postgres", "engine")
    killed: Counter[str] = Counter()
    async with load.running():
        for name in (*victims, *reversed(victims)):
            await load.completes(FLOWING)
            await _kill(stack, name)
            killed[name] += 1
        await load.completes(FLOWING)
    assert set(killed.values()) == {2}
    await assert_books_are_true(stack, load.received)


async def _kill(stack: Stack, name: str) -> None:
    if name == "engine":
        await stack.engine.gather()
        stack.engine.kill()
        stack.engine.start()
        return

    async def look() -> bool:
        return stack.row(name).pid != 0

    await until(look)
    stack.kill(name)
