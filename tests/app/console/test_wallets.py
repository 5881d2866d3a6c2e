"""The wallet's page: balance, grants in the order in which they burn, corrections, and what is not there."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import text

from app.core import ids
from app.core.clock import from_ms
from app.identity.model import Role
from billing.ledger import corrections, service
from billing.ledger.corrections import Asked
from billing.ledger.model import Terms
from tests.app.console.conftest import Site


async def give(site: Site, *, reference: str, terms: Terms) -> None:
    async with site.shop.engine.begin() as connection:
        await service.grant(
            connection,
            wallet_id=site.shop.wallet.id,
            amount=5 * 10**12,
            kind="promo",
            reason=f"<i>{reference}</i>",
            reference=reference,
            created_by="mem_one",
            terms=terms,
            now=from_ms(site.shop.clock.now_ms()),
        )


async def test_a_wallet_shows_its_grants_in_the_order_of_burning_and_what_expires_next(site: Site) -> None:
    now = from_ms(site.shop.clock.now_ms())
    await give(site, reference="later", terms=Terms(starts_at=now + timedelta(days=1)))
    await give(site, reference="soon", terms=Terms(7, None, now + timedelta(days=2)))
    visitor = await site.signed_in()
    page = (await visitor.get(f"/wallets/{site.shop.wallet.id}")).text
    assert "5 USD at 2026-09-23 14:14:20 (UTC)" in page
    order = [page.index(word) for word in ("&lt;i&gt;soon", "top-up", "&lt;i&gt;later")]
    assert order == sorted(order)
    assert "waiting" in page
    assert "No corrections" in page


async def test_a_correction_is_on_the_pages_of_wallet_and_request(site: Site) -> None:
    asked = Asked(ids.RequestId(site.request_id), "<b>twice</b>", "one", "mem_one", 10**8)
    async with site.shop.engine.begin() as connection:
        await corrections.correct(connection, asked, now=from_ms(site.shop.clock.now_ms()))
    visitor = await site.signed_in()
    for path in (f"/wallets/{site.shop.wallet.id}", f"/requests/{site.request_id}"):
        page = (await visitor.get(path)).text
        assert "0.0001" in page
        assert "&lt;b&gt;twice" in page
    assert "The request costs 0.0005084 USD in all." in page


async def test_every_wallet_within_reach_is_listed_and_no_other(site: Site) -> None:
    other = ids.tenant_id()
    async with site.shop.owner.begin() as connection:
        new = "INSERT INTO tenant (id, name, currency) VALUES (:id, 'Other', 'EUR')"
        await connection.execute(text(new), {"id": other})
    async with site.shop.engine.begin() as connection:
        wallet = await service.open_wallet(connection, tenant_id=other, currency="EUR")
    staff = await site.signed_in()
    listed = (await staff.get("/wallets")).text
    assert [name in listed for name in ("Acme", "Other")] == [True, True]
    empty = (await staff.get(f"/wallets/{wallet.id}")).text
    assert "No grant has anything left" in empty
    member = await site.member(Role.VIEWER, tenant_id=site.shop.catalogue.tenant_id)
    assert "Other" not in (await member.get("/wallets")).text
    assert (await member.get(f"/wallets/{wallet.id}")).status_code == 404
    assert (await staff.get("/wallets/wal_none")).status_code == 404
