"""Whether an engine answers at an address, asked as the gateway will ask it."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

import httpx

_TIMEOUT_S = 5.0
_MAX_BODY = 1 << 20


@dataclass(frozen=True)
class ConnectionReport:
    """What the engine said.   problem: None if it serves the model, else what to put right."""

    reachable: bool
    serves_model: bool | None
    problem: str | None


async def probe_engine(base_url: str, *, served_model: str) -> ConnectionReport:
    """Ask `/health` and `/v1/models` at an engine's address. Never raises; at most about ten seconds."""
    if _is_link_local(base_url):
        return ConnectionReport(False, None, "link-local addresses (cloud metadata) are never engines")
    async with httpx.AsyncClient(timeout=_TIMEOUT_S, follow_redirects=False, trust_env=False) as client:
        try:
            health = await client.get(f"{base_url}/health")
            if health.status_code != 200:
                return ConnectionReport(True, None, f"/health answers {health.status_code}")
            return await _asked_for_models(client, base_url, served_model=served_model)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return ConnectionReport(False, None, f"no connection: {type(error).__name__}")


async def _asked_for_models(
    client: httpx.AsyncClient, base_url: str, *, served_model: str
) -> ConnectionReport:
    listing = await client.get(f"{base_url}/v1/models")
    if listing.status_code != 200 or len(listing.content) > _MAX_BODY:
        return ConnectionReport(True, None, f"/v1/models answers {listing.status_code}")
    try:
        names = [str(each["id"]) for each in listing.json()["data"]]
    except (ValueError, KeyError, TypeError):
        return ConnectionReport(True, None, "/v1/models is no model list")
    if served_model not in names:
        return ConnectionReport(True, False, f"it serves {', '.join(names[:5])}, not {served_model}")
    return ConnectionReport(True, True, None)


def _is_link_local(base_url: str) -> bool:
    try:
        return ip_address(urlsplit(base_url).hostname or "").is_link_local
    except ValueError:
        return False
