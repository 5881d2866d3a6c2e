"""Secrets of 256 random bits: made once, shown once, kept as a SHA-256 digest.

A digest without salt or stretching is enough for a secret that no dictionary holds; passwords,
which people choose, go through argon2id (`passwords.py`).
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field

API_KEY_PREFIX = "sk-sy-"
ACCESS_TOKEN_PREFIX = "sya_"  # noqa: S105 - the public prefix, not a secret
_SESSION_PREFIX = "sys_"


@dataclass(frozen=True)
class Credential:
    """A fresh secret and what is kept of it."""

    secret: str = field(repr=False)
    digest: bytes = field(repr=False)
    prefix: str
    last_four: str


def new_api_key() -> Credential:
    return _new(API_KEY_PREFIX)


def new_access_token() -> Credential:
    return _new(ACCESS_TOKEN_PREFIX)


def new_session() -> Credential:
    return _new(_SESSION_PREFIX)


def digest_of(secret: str) -> bytes:
    """SHA-256 of a presented secret; text that isn't UTF-8 gets the digest of no secret of ours."""
    return hashlib.sha256(secret.encode("utf-8", "backslashreplace")).digest()


def _new(prefix: str) -> Credential:
    secret = prefix + secrets.token_urlsafe(32)
    return Credential(secret, digest_of(secret), secret[: len(prefix) + 4], secret[-4:])
