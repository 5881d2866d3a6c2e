"""Whether an engine answers at an address, asked as the gateway will ask it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

import httpx

_TIMEOUT_S = 5.0
_MAX_BODY = 1 << 20
_PLAIN = {"accept-encoding": "identity"}


@dataclass(frozen=True)
class ConnectionReport:
    """What the engine said.   problem: None if it serves the model, else what to put right."""

    reachable: bool
    serves_model: bool | None
    problem: str | None


async def probe_engine(base_url: str, *, served_model: str, within_s: float = 10.0) -> ConnectionReport:
    """Ask `/health` and `/v1/models` at an engine's address. Never raises; at most `within_s` in all."""
    try:
        async with (
            asyncio.timeout(within_s),
            httpx.AsyncClient(timeout=_TIMEOUT_S, follow_redirects=False, trust_env=False) as client,
        ):
            status, _ = await _get(client, f"{base_url}/health")
            if status != 200:
                return ConnectionReport(True, None, f"/health answers {status}")
            return await _asked_for_models(client, base_url, served_model=served_model)
    except TimeoutError:
        return ConnectionReport(True, None, f"it does not answer to its end within {within_s:g} s")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return ConnectionReport(False, None, f"no connection: {type(error).__name__}")


async def _asked_for_models(
    client: httpx.AsyncClient, base_url: str, *, served_model: str
) -> ConnectionReport:
    status, body = await _get(client, f"{base_url}/v1/models")
    if status != 200:
        return ConnectionReport(True, None, f"/v1/models answers {status}")
    try:
        names = [str(each["id"]) for each in json.loads(body)["data"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ConnectionReport(True, None, "/v1/models is no model list")
    if served_model not in names:
        return ConnectionReport(True, False, f"it serves {', '.join(names[:5])}, not {served_model}")
    return ConnectionReport(True, True, None)


async def _get(client: httpx.AsyncClient, url: str) -> tuple[int, bytes]:
    """Status and body as it comes; of one without end only its beginning. That, or a packed one, is no JSON.

    Nothing is unpacked: a kilobyte could become a gigabyte at once.
    """
    async with client.stream("GET", url, headers=_PLAIN) as answer:
        body = b""
        async for piece in answer.aiter_raw():
            body += piece
            if len(body) > _MAX_BODY:
                break
        return answer.status_code, body
