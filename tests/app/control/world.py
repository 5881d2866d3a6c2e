"""A control plane on a real database, and callers of every kind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from sqlalchemy.ext.asyncio import AsyncEngine

from app.control.application import create_app
from app.control.guard import Guard
from app.core.clock import ManualClock, from_ms
from app.core.database import connect_engine
from app.identity.audit import Trail
from app.identity.members import create_access_token, find_member_by_email
from app.identity.setup import create_admin
from tests.database import Database

ADMIN = "admin@steelyard.example"
PASSWORD = "a long enough password"
METERS = ("input", "input_cached", "input_cache_write", "output")


@dataclass
class World:
    """The app, its database, and an operator's client."""

    database: Database
    engine: AsyncEngine
    clock: ManualClock
    app: Guard
    operator: httpx.AsyncClient

    def client(self, secret: str | None = None, **headers: str) -> httpx.AsyncClient:
        """A caller with a credential, or without."""
        if secret is not None:
            headers["authorization"] = f"Bearer {secret}"
        transport = httpx.ASGITransport(app=self.app)
        return httpx.AsyncClient(transport=transport, base_url="http://control.example", headers=headers)

    async def made(self, path: str, body: dict[str, Any] | None = None, **headers: str) -> dict[str, Any]:
        """What a POST by the operator makes."""
        answer = await self.operator.post(f"/api/v1{path}", json=body or {}, headers=headers)
        assert answer.is_success, answer.text
        return dict(answer.json())

    async def tenant(self, name: str, **facts: str) -> dict[str, Any]:
        return await self.made("/tenants", {"name": name, "currency": "USD", **facts})

    async def member(self, role: str, tenant_id: str | None = None) -> httpx.AsyncClient:
        """A client of a fresh member."""
        email = f"{role}-{tenant_id or 'staff'}@example.com"
        facts = {"email": email, "role": role, "tenant_id": tenant_id, "password": PASSWORD}
        await self.made("/members", facts)
        return await self.logged_in(email)

    async def logged_in(self, email: str) -> httpx.AsyncClient:
        """A client with an access token of the member."""
        async with self.engine.begin() as connection:
            found = await find_member_by_email(connection, email)
            assert found is not None
            now = from_ms(self.clock.now_ms())
            _, secret = await create_access_token(
                connection, found.id, name="test", now=now, trail=Trail("test")
            )
        return self.client(secret)

    async def priced_model(self, name: str = "model-a") -> dict[str, Any]:
        """A published model with a full price in a default book."""
        limits = {"context_limit": 8192, "max_output_tokens": 4096, "default_output_tokens": 512}
        model = await self.made("/models", {"name": name, **limits})
        book = await self.made("/price-books", {"name": "Standard", "currency": "USD", "is_default": True})
        version = await self.made(f"/price-books/{book['id']}/versions")
        await self.put_prices(version["id"], name)
        await self.made(f"/price-versions/{version['id']}/publish")
        return await self.made(f"/models/{model['id']}/publish")

    async def put_prices(self, version_id: str, *models: str, price: str = "0.54") -> httpx.Response:
        prices = [{"model": model, "meter": meter, "price": price} for model in models for meter in METERS]
        answer = await self.operator.put(
            f"/api/v1/price-versions/{version_id}/prices", json={"prices": prices}
        )
        assert answer.is_success, answer.text
        return answer


@asynccontextmanager
async def open_world(database: Database) -> AsyncIterator[World]:
    """A control plane on a fresh database with its first operator."""
    engine = connect_engine(database.app_url)
    clock = ManualClock()
    app = create_app(engine, clock=clock)
    async with engine.begin() as connection:
        now = from_ms(clock.now_ms())
        secret = await create_admin(connection, email=ADMIN, password=PASSWORD, now=now)
    transport = httpx.ASGITransport(app=app)
    headers = {"authorization": f"Bearer {secret}"}
    try:
        async with httpx.AsyncClient(
            transport=transport, base_url="http://control.example", headers=headers
        ) as operator:
            yield World(database, engine, clock, app, operator)
    finally:
        await engine.dispose()
