"""Where webhooks may go: to public addresses, over TLS; elsewhere only to hosts that the operator names.

A name is resolved once for each attempt, all its addresses are checked, and the connection goes to one of
those: a name that resolves otherwise a moment later reaches nothing. The checks are pure.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from urllib.parse import urlsplit

import msgspec

Address = IPv4Address | IPv6Address
NOT_PUBLIC = "the host does not resolve to public addresses"
RESOLVE_S = 3.0
_NAT64 = IPv6Network("64:ff9b::/96")
_DEFAULT_PORTS = {"https": 443, "http": 80}


class BadAddress(ValueError):
    """A URL to which nothing is sent; its text says why."""


class Target(msgspec.Struct, frozen=True):
    """A URL taken apart.   trusted: the operator lets webhooks reach this host wherever it is."""

    scheme: str
    host: str
    port: int
    path: str
    trusted: bool

    @property
    def host_header(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    def url_at(self, address: Address) -> str:
        """The URL with an address in place of its host."""
        host = f"[{address}]" if address.version == 6 else str(address)
        return f"{self.scheme}://{host}:{self.port}{self.path}"


def parse_target(url: str, *, private_hosts: str) -> Target:
    """A webhook's URL. Raises BadAddress if it can't be one.

    private_hosts: names, separated by commas, that may be private and may go without TLS.
    """
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip(".").encode("idna").decode().lower(), parts.port
    except ValueError as error:
        raise BadAddress("it can't be read") from error
    trusted = host in {each.strip().lower() for each in private_hosts.split(",") if each.strip()}
    if not host or not url.isascii() or any(char.isspace() for char in url):
        raise BadAddress("it has no host, or letters that a URL can't have")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise BadAddress("it holds a user, a password or a fragment")
    if parts.scheme != "https" and not (parts.scheme == "http" and trusted):
        raise BadAddress("it begins with https://")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme, host, port or _DEFAULT_PORTS[parts.scheme], path, trusted)


async def resolve(target: Target) -> list[Address]:
    """The addresses to connect to, best first. Raises BadAddress if there is none, or one is not public.

    Names that don't resolve and names that resolve to private addresses are told apart by nobody.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_S):
            found = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TimeoutError) as error:
        raise BadAddress(NOT_PUBLIC) from error
    return checked([ip_address(each[4][0]) for each in found], trusted=target.trusted)


def checked(addresses: Iterable[Address], *, trusted: bool) -> list[Address]:
    """The addresses, if all of them may be reached. Raises BadAddress."""
    known = list(addresses)
    if not known or not (trusted or all(map(is_public, known))):
        raise BadAddress(NOT_PUBLIC)
    return known


def is_public(address: Address) -> bool:
    """Whether an address is one of the public internet, and so is each IPv4 address that it carries."""
    if isinstance(address, IPv6Address):
        carried = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
        if address in _NAT64:
            return is_public(IPv4Address(int(address) & 0xFFFF_FFFF))
        if not all(is_public(inner) for inner in carried if inner is not None):
            return False
        if address.ipv4_mapped is not None:
            return True
    return address.is_global and not address.is_multicast and not address.is_reserved
