"""Sends a webhook's message: to a checked address, in bounded time; an answer's body is not read."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from datetime import datetime
from functools import cache

import httpx

from billing.alerts.addresses import Address, BadAddress, Target, parse_target, resolve
from billing.alerts.message import body_of, headers_of
from billing.alerts.model import Attempt, Outcome

TIMEOUT_S = 10.0
CONNECT_S = 3.0
MOST_ADDRESSES = 3


async def send(
    attempt: Attempt, *, private_hosts: str, now: datetime, timeout_s: float = TIMEOUT_S
) -> Outcome:
    """How a receiver took a message. Never raises; 2xx is taken, 410 wants no more, all else is a failure.

    timeout_s: for all of it. An error says what kind it was, and nothing that a receiver could put there.
    """
    try:
        async with asyncio.timeout(timeout_s):
            status = await _post(attempt, private_hosts=private_hosts, now=now)
    except BadAddress as error:
        return Outcome(error=f"the URL was refused: {error}")
    except TimeoutError:
        return Outcome(error=f"no answer within {timeout_s:g} s")
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        return Outcome(error=f"it could not be reached: {type(error).__name__}")
    if 200 <= status < 300:
        return Outcome(status=status)
    return Outcome(status=status, error=f"it answered {status}", gone=status == 410)


async def _post(attempt: Attempt, *, private_hosts: str, now: datetime) -> int:
    target = parse_target(attempt.address, private_hosts=private_hosts)
    *others, last = (await resolve(target))[:MOST_ADDRESSES]
    body = body_of(attempt)
    headers = headers_of(attempt, body, now=now) | {"host": target.host_header}
    for address in others:
        with suppress(httpx.ConnectError, httpx.ConnectTimeout):
            return await _post_to(address, target, body=body, headers=headers)
    return await _post_to(last, target, body=body, headers=headers)


async def _post_to(address: Address, target: Target, *, body: bytes, headers: dict[str, str]) -> int:
    # A client and a connection for each message: no cookie and no certificate of one host's serves another's
    # message that goes to the same address.
    timeout = httpx.Timeout(TIMEOUT_S, connect=CONNECT_S)
    # The certificate is that of the host; the connection goes to the address that was checked.
    extensions = {"sni_hostname": target.host}
    url = target.url_at(address)
    async with (
        httpx.AsyncClient(verify=_tls(), follow_redirects=False, trust_env=False, timeout=timeout) as client,
        client.stream("POST", url, content=body, headers=headers, extensions=extensions) as answer,
    ):
        return answer.status_code


@cache
def _tls() -> ssl.SSLContext:
    return httpx.create_ssl_context()
