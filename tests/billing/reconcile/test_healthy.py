"""Whatever happens in a house that keeps its laws, no pair of books finds a gap."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core import ids
from app.core.clock import from_ms
from app.core.errors import Conflict
from app.core.ids import RequestId
from billing.chain.sealing import seal
from billing.ledger import corrections, expiry, service
from billing.ledger.corrections import Asked
from billing.ledger.model import GrantKind, Terms
from billing.metering.model import NOTHING, Outcome, Usage, UsageSource
from tests.billing.journal.shop import NOW_MS, Shop, open_shop, settled
from tests.billing.reconcile.posted import all_gaps, post
from tests.database import Database

DAY_S = 86_400


@dataclass(frozen=True)
class Request:
    """How one request ends, and how often its record comes."""

    outcome: Outcome
    source: UsageSource
    usage: Usage
    key: int
    times: int


@dataclass(frozen=True)
class Chapter:
    """What happens at a moment: requests in one batch, a grant, a correction, what is due, a sealing."""

    seconds: int
    requests: list[Request]
    grant: int
    lives_s: int | None
    correction: int
    seals: bool


usages = st.builds(
    Usage, input=st.integers(0, 800), input_cached=st.integers(0, 200), output=st.integers(0, 500)
)
requests = st.builds(
    Request,
    st.sampled_from(Outcome),
    st.sampled_from(UsageSource),
    usages,
    st.integers(1, 3),
    st.integers(1, 2),
)
chapters = st.builds(
    Chapter,
    st.integers(1, DAY_S // 2),
    st.lists(requests, max_size=5),
    st.sampled_from([0, 0, 10**9, 10**12]),
    st.sampled_from([None, 60, DAY_S]),
    st.integers(-(10**6), 10**6),
    st.booleans(),
)


def test_no_history_of_a_healthy_house_has_a_gap(database: Database) -> None:
    """Each history goes on where the last one ended, so the books grow all the while."""
    with asyncio.Runner() as runner:
        opened = open_shop(database)
        shop = runner.run(opened.__aenter__())
        bought: list[RequestId] = []

        @settings(max_examples=15, deadline=None)
        @given(st.lists(chapters, min_size=1, max_size=3))
        def history(story: list[Chapter]) -> None:
            for chapter in story:
                runner.run(_live(shop, chapter, bought=bought))
            assert runner.run(all_gaps(shop)) == []

        try:
            history()
        finally:
            runner.run(opened.__aexit__(None, None, None))
        assert len(bought) > 10


async def _live(shop: Shop, chapter: Chapter, *, bought: list[RequestId]) -> None:
    shop.clock.advance(chapter.seconds)
    await _post(shop, chapter.requests, bought=bought)
    now = from_ms(shop.clock.now_ms())
    async with shop.engine.begin() as connection:
        if chapter.grant:
            ends = None if chapter.lives_s is None else from_ms(shop.clock.now_ms() + chapter.lives_s * 1000)
            await service.grant(
                connection,
                wallet_id=shop.wallet.id,
                amount=chapter.grant,
                kind=GrantKind.PROMO,
                reason="chance",
                reference=ids.grant_id(),
                created_by="mem_one",
                terms=Terms(100, None, ends),
                now=now,
            )
    async with shop.engine.begin() as connection:
        await expiry.turn(connection, shop.wallet.id, now=now)
    if bought and chapter.correction:
        await _correct(shop, bought[chapter.correction % len(bought)], amount=chapter.correction)
    if chapter.seals:
        async with shop.engine.begin() as connection:
            await seal(connection, now=now, most=3)


async def _post(shop: Shop, some: list[Request], *, bought: list[RequestId]) -> None:
    incarnation_id = await shop.incarnation()
    batch = []
    for each in some:
        one = shop.catalogue.admitted(at_ms=max(NOW_MS, shop.clock.now_ms() - 1_000_000 * each.key))
        admitted = msgspec.structs.replace(one, key_id=ids.KeyId(f"key_{each.key}"))
        usage = NOTHING if each.source is UsageSource.UNKNOWN else each.usage
        end = settled(admitted, usage, outcome=each.outcome, source=each.source)
        batch += [(admitted, end)] * each.times
        bought.append(admitted.request_id)
    await post(shop, batch, incarnation_id=incarnation_id)


async def _correct(shop: Shop, request_id: RequestId, *, amount: int) -> None:
    asked = Asked(request_id, "chance", ids.grant_id(), "mem_one", amount)
    async with shop.engine.begin() as connection:
        try:
            await corrections.correct(connection, asked, now=from_ms(shop.clock.now_ms()))
        except Conflict:
            await connection.rollback()
