"""A console over a real database in which requests were settled and refused, and visitors of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest_asyncio
from starlette.applications import Starlette
from starlette.routing import Mount

from app.console.app import create_console
from app.core import ids
from app.core.clock import from_ms
from app.core.settings import Settings
from app.identity.audit import Trail
from app.identity.members import create_member
from app.identity.model import Role
from app.identity.setup import create_admin
from billing.journal.model import Record, Refused
from billing.journal.settler import Settler
from billing.metering.model import Outcome, Usage, UsageSource
from tests.app.console.forms import hidden_fields
from tests.billing.journal import journals
from tests.billing.journal.shop import NOW_MS, Shop, open_shop, settled
from tests.database import Database

ADMIN = "admin@steelyard.example"
PASSWORD = "a long enough password"
REASON = "tokens_per_minute"


@dataclass(frozen=True)
class Site:
    """The console as mounted in the control process, and what it shows."""

    shop: Shop
    application: Starlette
    request_id: str
    refused_id: str

    def visitor(self, *, host: str = "10.0.0.9") -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app=self.application, client=(host, 4711))
        return httpx.AsyncClient(transport=transport, base_url="http://console.example/console")

    async def signed_in(self, email: str = ADMIN) -> httpx.AsyncClient:
        """A visitor who signed in by the form."""
        visitor = self.visitor()
        form = hidden_fields((await visitor.get("/login")).text)
        answer = await visitor.post("/login", data={**form, "email": email, "password": PASSWORD})
        assert answer.status_code == 303, answer.text
        return visitor

    async def member(self, role: Role, *, tenant_id: ids.TenantId | None) -> httpx.AsyncClient:
        """A visitor of a role, signed in."""
        email = f"{role.value}-{tenant_id}@steelyard.example"
        facts: dict[str, Any] = {"email": email, "role": role, "tenant_id": tenant_id, "password": PASSWORD}
        async with self.shop.engine.begin() as connection:
            await create_member(connection, **facts, trail=Trail("test"))
        return await self.signed_in(email)


@pytest_asyncio.fixture
async def site(database: Database, tmp_path: Path) -> AsyncIterator[Site]:
    async with open_shop(database) as shop:
        completed, cut, refused = await _settle(shop, tmp_path)
        assert cut
        async with shop.engine.begin() as connection:
            now = from_ms(shop.clock.now_ms())
            await create_admin(connection, email=ADMIN, password=PASSWORD, now=now)
        console = create_console(shop.engine, Settings(gateway_port=8123), clock=shop.clock)
        yield Site(shop, Starlette(routes=[Mount("/console", console)]), completed, refused)


async def _settle(shop: Shop, folder: Path) -> tuple[str, str, str]:
    """Post a completed request, one of unknown usage and a refused one; returns their ids."""
    incarnation_id = await shop.incarnation()
    whole, cut = shop.catalogue.admitted(), shop.catalogue.admitted()
    attempt = {"backend_id": "bck_one", "outcome": "completed", "predicted_wait_ms": 12.5}
    end = settled(whole, attempts=({**attempt, "scores": {"bck_one": 12.5}},))
    unknown = settled(cut, Usage(), outcome=Outcome.CLIENT_CANCELLED, source=UsageSource.UNKNOWN)
    refused = Refused(
        request_id=ids.request_id(),
        at_ms=NOW_MS,
        tenant_id=shop.catalogue.tenant_id,
        project_id=whole.project_id,
        key_id=whole.key_id,
        model_name="<b>small</b>",
        endpoint="chat.completions",
        reason=REASON,
        message="too many tokens",
        status=429,
        limit="40000",
        observed="52310",
        retry_after_s=21.0,
    )
    records: list[Record] = [whole, end, cut, unknown, refused]
    journals.dead(folder, incarnation_id, b"".join(journals.frames(incarnation_id, records)))
    settler = Settler(shop.engine, folder=folder, clock=shop.clock)
    await settler.look()
    settler.close()
    return whole.request_id, cut.request_id, refused.request_id
