"""The demo that a first `up` leaves: an operator, a tenant with a prepaid wallet, a key, a priced model.

All of it goes through the control API as a person would do it; what is already there is left as it is.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import httpx
import msgspec

from app.core.errors import DependencyError
from app.stack.addresses import Addresses
from app.stack.control_client import ControlClient, Record
from app.stack.data_dir import Credentials, DataDir
from app.stack.program import python
from app.stack.steps import run_to_end

ADMIN_EMAIL = "admin@steelyard.local"
TENANT = "Demo"
PROJECT = "Demo"
KEY = "demo"
PRICE_BOOK = "Standard"
PRICES = {"input": "0.54", "input_cached": "0.18", "input_cache_write": "0.54", "output": "2.16"}
"""US dollars per million tokens."""
GRANT_USD = "10"
_CHECK_TRIES = 100
_CHECK_EVERY_S = 0.1
_LARGEST_DEFAULT = 512


@dataclass(frozen=True)
class Engine:
    """The engine behind the demo's deployment. Without `model` it is asked what it serves."""

    url: str
    kind: str = "openai"
    model: str = ""
    context: int = 8192
    slots: int = 64


@dataclass
class Demo:
    """Seeds and checks one stack's demo.   environment: that of the stack's processes."""

    data: DataDir
    addresses: Addresses
    engine: Engine
    environment: Mapping[str, str]

    async def make_admin(self) -> str:
        """Make the first operator and keep an access token of theirs. Idempotent. Raises DependencyError."""
        found = self.data.read_credentials()
        credentials = found or Credentials(ADMIN_EMAIL, admin_password=secrets.token_urlsafe(12))
        credentials.gateway_url = self.addresses.gateway_url
        credentials.control_url = self.addresses.control_url
        self.data.write_credentials(credentials)
        if credentials.token:
            return "as before"
        await self._new_token(credentials)
        return "made"

    async def seed(self) -> str:
        """Make what lacks and write the credentials down. Idempotent. Raises DependencyError."""
        credentials = self._credentials()
        known = bool(credentials.api_key)
        engine = self.engine if self.engine.model else await discover(self.engine)
        credentials.model = engine.model
        async with httpx.AsyncClient(base_url=f"{self.addresses.control_url}/api/v1", timeout=20) as http:
            await self._sign_in(http, credentials)
            control = ControlClient(http)
            await _tenant(control, credentials)
            await _model(control, engine)
            await _key(control, credentials)
        self.data.write_credentials(credentials)
        return "as before" if known else "seeded"

    async def check(self) -> str:
        """Return once the gateway serves the demo's key and model. Raises DependencyError if it doesn't."""
        credentials = self._credentials()
        headers = {"Authorization": f"Bearer {credentials.api_key}"}
        said = ""
        async with httpx.AsyncClient(base_url=self.addresses.gateway_url, headers=headers) as http:
            for _ in range(_CHECK_TRIES):
                said = await _models_said(http)
                if f'"{credentials.model}"' in said:
                    return "the gateway serves the demo model"
                await asyncio.sleep(_CHECK_EVERY_S)
        raise DependencyError(f"the gateway does not serve {credentials.model}; it says: {said[:300]}")

    def _credentials(self) -> Credentials:
        credentials = self.data.read_credentials()
        if credentials is None:
            raise DependencyError(f"{self.data.credentials_file} is gone: start again")
        return credentials

    async def _sign_in(self, http: httpx.AsyncClient, credentials: Credentials) -> None:
        """Give `http` a token that the control API takes, made anew if the kept one no longer works."""
        http.headers["Authorization"] = f"Bearer {credentials.token}"
        if (await http.get("/me")).status_code == httpx.codes.UNAUTHORIZED:
            await self._new_token(credentials)
            http.headers["Authorization"] = f"Bearer {credentials.token}"

    async def _new_token(self, credentials: Credentials) -> None:
        own = {"STEELYARD_ADMIN_PASSWORD": credentials.admin_password}
        output = await run_to_end(
            python("app.bootstrap.admin", "--email", credentials.admin_email),
            environment=dict(self.environment) | own,
            logs=self.data.logs,
            name="admin",
        )
        credentials.token = msgspec.json.decode(output, type=dict[str, str])["token"]
        self.data.write_credentials(credentials)


async def discover(engine: Engine) -> Engine:
    """`engine` with the model that it serves first, its limit and its kind. Raises DependencyError."""
    try:
        async with httpx.AsyncClient(timeout=10) as http:
            answer = await http.get(f"{engine.url.rstrip('/')}/v1/models")
            served = answer.raise_for_status().json()["data"][0]
    except (httpx.HTTPError, ValueError, LookupError) as error:
        raise DependencyError(
            f"the engine at {engine.url} does not tell its models: {error}\ntry: curl {engine.url}/v1/models"
        ) from error
    kinds = {
        "vllm": "vllm",
        "llamacpp": "llama-server",
        "sglang": "sglang",
        "steelyard-simulator": "simulator",
    }
    limit = served.get("max_model_len") or (served.get("meta") or {}).get("n_ctx") or engine.context
    kind = kinds.get(str(served.get("owned_by")), "openai")
    return replace(engine, kind=kind, model=str(served["id"]), context=int(limit))


async def _tenant(control: ControlClient, credentials: Credentials) -> None:
    """The tenant, its project and its first money."""
    tenant = await control.ensure("/tenants", {"name": TENANT, "currency": "USD", "timezone": "UTC"})
    credentials.tenant_id = str(tenant["id"])
    project = await control.ensure(f"/tenants/{tenant['id']}/projects", {"name": PROJECT})
    credentials.project_id = str(project["id"])
    wallet = await control.get(f"/tenants/{tenant['id']}/wallet")
    grants = f"/wallets/{wallet['id']}/grants"
    if not await control.rows(grants):
        gift = {"amount": GRANT_USD, "kind": "promo", "reason": "demo", "reference": "demo"}
        await control.post(grants, gift, idempotency_key=f"demo-grant-{wallet['id']}")


async def _model(control: ControlClient, engine: Engine) -> None:
    """The model, priced in the default book, published, with the engine as its one backend."""
    default = min(_LARGEST_DEFAULT, engine.context // 2)
    limits = {
        "context_limit": engine.context,
        "max_output_tokens": engine.context // 2,
        "default_output_tokens": default,
    }
    model = await control.ensure("/models", {"name": engine.model, "display_name": engine.model, **limits})
    if model["status"] != "published":
        await _price(control, engine.model)
        await control.post(f"/models/{model['id']}/publish")
    deployment = await control.ensure("/deployments", {"model_id": model["id"]}, match="model_id")
    await _backend(control, engine, deployment_id=str(deployment["id"]))


async def _price(control: ControlClient, model: str) -> None:
    """Publish a version of the demo's book that prices `model` too and leaves every other price as it is."""
    book = await control.ensure("/price-books", {"name": PRICE_BOOK, "currency": "USD", "is_default": True})
    versions = f"/price-books/{book['id']}/versions"
    prices = {(one["model"], one["meter"]): one["price"] for one in await _published(control, versions)}
    prices |= {(model, meter): price for meter, price in PRICES.items()}
    draft = await control.post(versions)
    body = [{"model": name, "meter": meter, "price": price} for (name, meter), price in prices.items()]
    await control.put(f"/price-versions/{draft['id']}/prices", {"prices": body})
    await control.post(f"/price-versions/{draft['id']}/publish", idempotency_key=f"demo-{draft['id']}")


async def _published(control: ControlClient, versions: str) -> list[Record]:
    """The prices of the version published last; none if there is none."""
    published = [one for one in await control.rows(versions) if one["status"] == "published"]
    if not published:
        return []
    newest = max(published, key=lambda one: str(one["effective_from"]))
    return list((await control.get(f"/price-versions/{newest['id']}"))["prices"])


async def _backend(control: ControlClient, engine: Engine, *, deployment_id: str) -> None:
    """The engine as the demo's backend, at the address that it has today."""
    wanted: dict[str, Any] = {
        "deployment_id": deployment_id,
        "base_url": engine.url,
        "engine": engine.kind,
        "served_model": engine.model,
        "max_concurrent": engine.slots,
    }
    backends = await control.rows("/backends")
    ours = [one for one in backends if one["deployment_id"] == deployment_id and one["status"] != "removed"]
    if any(one["base_url"] == engine.url for one in ours):
        return
    await control.post("/backends", wanted)
    for stale in (one for one in ours if str(one["base_url"]).startswith("http://127.0.0.1:")):
        await control.delete(f"/backends/{stale['id']}")


async def _key(control: ControlClient, credentials: Credentials) -> None:
    if not credentials.api_key:
        key = await control.post(f"/projects/{credentials.project_id}/keys", {"name": KEY})
        credentials.api_key = str(key["key"])


async def _models_said(http: httpx.AsyncClient) -> str:
    try:
        return (await http.get("/v1/models")).text
    except httpx.HTTPError as error:
        return repr(error)
