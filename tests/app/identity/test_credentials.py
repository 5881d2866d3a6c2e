"""Secrets and passwords."""

from __future__ import annotations

import asyncio
import threading

import pytest

from app.core.errors import Rejected
from app.core.log import redact
from app.identity.credentials import digest_of, new_access_token, new_api_key
from app.identity.passwords import hash_password, matches


def test_a_key_holds_256_random_bits_and_only_its_ends_are_for_people() -> None:
    keys = [new_api_key() for _ in range(100)]
    assert len({key.secret for key in keys}) == 100
    for key in keys:
        assert len(key.secret) == 6 + 43
        assert key.digest == digest_of(key.secret)
        assert key.secret.startswith(key.prefix)
        assert key.secret.endswith(key.last_four)


@pytest.mark.parametrize("make", [new_api_key, new_access_token])
def test_a_credential_does_not_show_its_secret_when_printed_or_logged(make: object) -> None:
    assert callable(make)
    credential = make()
    assert credential.secret not in repr(credential)
    assert credential.secret not in redact(f"bearer {credential.secret}")


def test_text_that_is_not_unicode_has_a_digest_of_no_key() -> None:
    assert digest_of("sk-sy-\udcff") != digest_of("sk-sy-")


async def test_a_password_matches_its_own_hash_only() -> None:
    hashed = await hash_password("a long enough password")
    assert hashed.startswith("$argon2id$")
    assert await matches("a long enough password", hashed)
    assert not await matches("A long enough password", hashed)
    assert not await matches("a long enough password", None)
    assert not await matches("a long enough password", "no hash at all")


@pytest.mark.parametrize("password", ["", "short", "x" * 257])
async def test_a_password_too_short_or_too_long_is_refused(password: str) -> None:
    with pytest.raises(Rejected):
        await hash_password(password)


async def test_however_many_log_in_at_once_only_two_hashes_take_memory() -> None:
    await asyncio.gather(*(matches("guess", None) for _ in range(6)))
    assert len([thread for thread in threading.enumerate() if thread.name.startswith("argon2")]) <= 2
