"""Every event and every correction has its link or waits for it; what has neither is found."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from importlib import resources
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.clock import from_ms
from app.core.ids import RequestId
from billing.chain.sealing import seal
from billing.ledger import corrections
from billing.ledger.corrections import Asked
from billing.reconcile.days import bounds
from billing.reconcile.model import Gap, Pair
from billing.reconcile.service import Terms, reconcile
from tests.billing.journal.shop import Shop
from tests.billing.reconcile.posted import TODAY, force, gaps, post_some, today

_TERMS = Terms(lag=timedelta(0))
_KEPT = "SELECT kind, left_value, resolved_at FROM reconcile_gap ORDER BY id"
_ENQUEUE = "INSERT INTO usage_unsealed (kind, posted_at, line_ids) VALUES ('event', now(), '{{{0}}}')"
_HISTORY = """
INSERT INTO usage_event SELECT (jsonb_populate_record(e, jsonb_build_object('request_id', format('req_%s', n),
  'admitted_at', e.admitted_at - (10000 - n) * interval '10 minutes'))).*
FROM usage_event e CROSS JOIN generate_series(1, 10000) n;
INSERT INTO usage_link SELECT tenant_id, current_date, row_number() OVER (), 'event', request_id,
  sha256(request_id::bytea), sha256(request_id::bytea) FROM usage_event;
DELETE FROM usage_unsealed;
ANALYZE usage_event, usage_link, usage_unsealed, usage_correction
"""


async def sealed(shop: Shop) -> None:
    async with shop.engine.begin() as connection:
        await sealing(shop, connection)


async def sealing(shop: Shop, connection: AsyncConnection) -> None:
    """A sealer's step whose transaction is still open."""
    assert await seal(connection, now=from_ms(shop.clock.now_ms()), most=1) is not None


async def correct(shop: Shop, request_id: str) -> str:
    """The id of a correction of an event."""
    asked = Asked(RequestId(request_id), "a mistake", "one", "mem_one", 500)
    async with shop.engine.begin() as connection:
        return (await corrections.correct(connection, asked, now=from_ms(shop.clock.now_ms()))).id


async def found(shop: Shop) -> list[Gap]:
    return await gaps(shop, Pair.EVENTS_LINKS)


def told(gap: Gap) -> tuple[str, str, str, int | None, int | None]:
    return gap.scope, gap.kind, gap.unit, gap.left, gap.right


async def test_whatever_waits_is_being_sealed_or_has_its_link_is_well(shop: Shop) -> None:
    assert await found(shop) == []
    first, *_ = await post_some(shop)
    await correct(shop, first)
    assert await found(shop) == []
    for _ in range(2):
        async with shop.engine.begin() as connection:
            await sealing(shop, connection)
            assert await found(shop) == []
        assert await found(shop) == []
    assert await shop.rows("SELECT count(*) FROM usage_unsealed") == [0]
    assert await shop.rows("SELECT count(*) FROM usage_link") == [4]


async def test_an_event_whose_link_is_gone_is_named(shop: Shop) -> None:
    _, second, _ = await post_some(shop)
    await sealed(shop)
    await force(shop, f"DELETE FROM usage_link WHERE line_id = '{second}'")
    (gap,) = await found(shop)
    assert told(gap) == ("events", "event_without_link", "records", 1, 0)
    assert gap.explanation == f"no link, and no place among what waits for one: {second}"
    for day in (TODAY - timedelta(days=1), TODAY + timedelta(days=1)):
        assert await gaps(shop, Pair.EVENTS_LINKS, day=day) == []


async def test_events_that_vanished_from_the_queue_are_counted_and_the_first_named(shop: Shop) -> None:
    posted = await post_some(shop, 7)
    await force(shop, "DELETE FROM usage_unsealed")
    (gap,) = await found(shop)
    assert told(gap) == ("events", "event_without_link", "records", 7, 0)
    assert gap.explanation.endswith(f"{', '.join(sorted(posted)[:5])} and 2 more")


async def test_a_correction_without_link_or_place_in_the_queue_is_a_gap_of_its_own(shop: Shop) -> None:
    first, *_ = await post_some(shop)
    correction_id = await correct(shop, first)
    await force(shop, "DELETE FROM usage_unsealed WHERE kind = 'correction'")
    (gap,) = await found(shop)
    assert told(gap) == ("corrections", "correction_without_link", "records", 1, 0)
    assert gap.explanation.endswith(correction_id)
    await force(shop, "DELETE FROM usage_unsealed")
    assert [gap.scope for gap in await found(shop)] == ["corrections", "events"]


async def test_a_link_or_a_place_of_another_kind_is_none(shop: Shop) -> None:
    (waiting,) = await post_some(shop, 1)
    await force(shop, "UPDATE usage_unsealed SET kind = 'correction'")
    assert [told(gap)[1:4] for gap in await found(shop)] == [("event_without_link", "records", 1)]
    await force(shop, "UPDATE usage_unsealed SET kind = 'event'")
    await sealed(shop)
    await force(shop, "UPDATE usage_link SET kind = 'correction'")
    assert [gap.explanation.rpartition(" ")[2] for gap in await found(shop)] == [waiting]


async def test_a_line_that_was_put_back_into_the_queue_resolves_its_gap(shop: Shop) -> None:
    lost, *_ = await post_some(shop)
    await sealed(shop)
    await force(shop, f"DELETE FROM usage_link WHERE line_id = '{lost}'")
    await look(shop)
    assert await shop.rows(_KEPT) == [("event_without_link", 1, None)]
    shop.clock.advance(60)
    await force(shop, _ENQUEUE.format(lost))
    await look(shop)
    assert await shop.rows(_KEPT) == [("event_without_link", 1, from_ms(shop.clock.now_ms()))]
    await sealed(shop)
    assert await found(shop) == []


async def test_a_day_of_a_long_history_is_read_by_index(shop: Shop) -> None:
    await post_some(shop, 1)
    await force(shop, *_HISTORY.split(";\n"))
    begins, ends = bounds(today(shop))
    query = (resources.files("billing.reconcile") / "queries" / "events_links.sql").read_text("utf-8")
    explain = text(f"EXPLAIN (FORMAT JSON) WITH {query} SELECT * FROM scanned LEFT JOIN gap ON true")
    async with shop.engine.begin() as connection:
        plan = (await connection.execute(explain, {"begins": begins, "ends": ends})).scalar_one()
    read = {(node.get("Relation Name"), node["Node Type"], node.get("Index Name")) for node in nodes(plan)}
    assert {index for table, _, index in read if table == "usage_link"} == {"usage_link_line_id_key"}
    assert "Seq Scan" not in {how for table, how, _ in read if table == "usage_event"}
    assert await found(shop) == []


async def look(shop: Shop) -> None:
    """Prove the pair and keep what was found, as the worker does."""
    async with shop.engine.begin() as connection:
        await reconcile(
            connection, today(shop), pairs=[Pair.EVENTS_LINKS], fleet=[], terms=_TERMS, clock=shop.clock
        )


def nodes(plan: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """All nodes of a plan."""
    for each in plan:
        node = each.get("Plan", each)
        yield node
        yield from nodes(node.get("Plans", []))
