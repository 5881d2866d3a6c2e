"""Sends a webhook's message: to a checked address, in bounded time; an answer's body is not read."""

from __future__ import annotations

import asyncio
import ssl
from datetime import datetime
from functools import cache

import httpx

from billing.alerts.addresses import BadAddress, parse_target, resolve
from billing.alerts.message import body_of, headers_of
from billing.alerts.model import Attempt, Outcome

TIMEOUT_S = 10.0


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
    address = await resolve(target)
    body = body_of(attempt)
    headers = headers_of(attempt, body, now=now) | {"host": target.host_header}
    # A client and a connection for each message: no cookie and no certificate of one host's serves another's
    # message that goes to the same address.
    async with (
        httpx.AsyncClient(
            verify=_tls(), follow_redirects=False, trust_env=False, timeout=TIMEOUT_S
        ) as client,
        client.stream(
            "POST",
            target.url_at(address),
            content=body,
            headers=headers,
            # The certificate is that of the host; the connection goes to the address that was checked.
            extensions={"sni_hostname": target.host},
        ) as answer,
    ):
        return answer.status_code


@cache
def _tls() -> ssl.SSLContext:
    return httpx.create_ssl_context()
