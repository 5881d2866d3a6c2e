"""Passwords as argon2id hashes (RFC 9106, second recommended option: 64 MiB, 3 passes)."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError
from argon2.profiles import RFC_9106_LOW_MEMORY

from app.core.errors import Rejected, RejectReason

MIN_LENGTH = 12
MAX_LENGTH = 256
_threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="argon2")
"""Two at a time, whoever calls: each hash takes 64 MiB, and anyone may try to log in."""
_hasher = PasswordHasher.from_parameters(RFC_9106_LOW_MEMORY)


async def hash_password(password: str) -> str:
    """The argon2id hash to keep. Raises Rejected if the password is too short or too long."""
    if not MIN_LENGTH <= len(password) <= MAX_LENGTH:
        raise Rejected(
            RejectReason.PARAMETER_INVALID,
            f"A password has {MIN_LENGTH} to {MAX_LENGTH} characters.",
            status=400,
            param="password",
        )
    return await asyncio.get_running_loop().run_in_executor(_threads, _hasher.hash, password)


async def matches(password: str, password_hash: str | None) -> bool:
    """True if the password made the hash; takes as long when there is none, so that nothing is told."""
    loop = asyncio.get_running_loop()
    known = await loop.run_in_executor(_threads, _verified, password[:MAX_LENGTH], password_hash)
    return known and password_hash is not None


@cache
def _nobodys_hash() -> str:
    return _hasher.hash("a password that nobody has")


def _verified(password: str, password_hash: str | None) -> bool:
    try:
        return _hasher.verify(password_hash or _nobodys_hash(), password)
    except (Argon2Error, InvalidHashError):
        return False
