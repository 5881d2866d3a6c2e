"""The page of reconciliation: what was proven, what differs, and each engine against its events."""

from __future__ import annotations

from datetime import timedelta

from app.core.clock import from_ms
from app.identity.model import Role
from billing.reconcile.service import Terms, reconcile
from tests.app.console.conftest import Site
from tests.billing.reconcile.fleet import TODAY, Fleet, at
from tests.billing.reconcile.posted import force


async def _reconciled(site: Site, fleet: Fleet) -> None:
    async with site.shop.engine.begin() as connection:
        terms = Terms(lag=timedelta(0))
        await reconcile(connection, TODAY, fleet=fleet.engines, terms=terms, clock=site.shop.clock)


async def test_before_the_first_proof_the_page_says_how_to_get_one(site: Site) -> None:
    page = (await (await site.signed_in()).get("/reconciliation")).text
    assert "Nothing was proven of this day yet" in page
    assert f"steelyard verify books --from {TODAY}" in page


async def test_proofs_gaps_and_engines_are_shown_and_unknown_is_a_dash(site: Site) -> None:
    fleet = Fleet(site.shop)
    await fleet.add()
    await _reconciled(site, fleet)
    visitor = await site.signed_in()
    page = (await visitor.get("/reconciliation")).text
    assert "All books agree" in page
    assert "bck_one" in page
    assert '<td class="number">–</td>' in page
    await force(site.shop, "UPDATE usage_rollup SET output = output + 1234567")
    site.shop.clock.advance(60)
    minutes = (from_ms(site.shop.clock.now_ms()) - at(0)).total_seconds() / 60
    await fleet.read(minutes - 600, prompt=0, generated=0)
    await fleet.read(minutes, prompt=99_999, generated=0)
    await _reconciled(site, fleet)
    page = (await visitor.get(f"/reconciliation?day={TODAY}")).text
    assert "sum differs" in page
    assert "1\u202f234\u202f" in page
    assert "unattributed" in page
    assert "nobody reported its usage" in page
    assert "▲" in page


async def test_a_day_that_is_none_is_the_last_one_that_was_proven(site: Site) -> None:
    visitor = await site.signed_in()
    for day in ("", "yesterday", "0001-01-01", "2026-13-40"):
        assert (await visitor.get(f"/reconciliation?day={day}")).status_code == 200


async def test_only_the_operators_staff_sees_it(site: Site) -> None:
    member = await site.member(Role.VIEWER, tenant_id=site.shop.catalogue.tenant_id)
    assert (await member.get("/reconciliation")).status_code == 403
    assert "/reconciliation" not in (await member.get("/")).text
    assert "/reconciliation" in (await (await site.signed_in()).get("/")).text
