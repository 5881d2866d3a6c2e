"""Console sessions: one message for every failure, a bound on tries, an end in time, no write from afar."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import httpx
import pytest

from app.core.clock import from_ms
from app.core.errors import Rejected
from app.identity.sessions import SESSION_COOKIE, LoginAttempts, find_session, login, logout
from tests.app.control.world import ADMIN, PASSWORD, World

LIFE = timedelta(hours=12)


async def _login(
    world: World,
    *,
    email: str = ADMIN,
    password: str = PASSWORD,
    attempts: LoginAttempts | None = None,
    address: str | None = None,
) -> str:
    async with world.engine.begin() as connection:
        return await login(
            connection,
            email=email,
            password=password,
            attempts=attempts or LoginAttempts(),
            now=from_ms(world.clock.now_ms()),
            lifetime=LIFE,
            from_address=address,
        )


async def _holder(world: World, secret: str) -> str | None:
    async with world.engine.connect() as connection:
        member = await find_session(connection, secret, now=from_ms(world.clock.now_ms()))
    return None if member is None else member.email


def _browser(world: World, secret: str, **headers: str) -> httpx.AsyncClient:
    return world.client(cookie=f"{SESSION_COOKIE}={secret}", **headers)


async def test_a_session_lives_until_its_end(world: World) -> None:
    secret = await _login(world, email=f"  {ADMIN.upper()} ")
    assert await _holder(world, secret) == ADMIN
    world.clock.advance(LIFE.total_seconds() - 1)
    assert await _holder(world, secret) == ADMIN
    world.clock.advance(1)
    assert await _holder(world, secret) is None


async def test_logout_ends_a_session_at_once(world: World) -> None:
    secret = await _login(world)
    async with world.engine.begin() as connection:
        await logout(connection, secret)
    assert await _holder(world, secret) is None


async def test_unknown_e_mail_and_wrong_password_get_the_same_answer(world: World) -> None:
    with pytest.raises(Rejected) as wrong:
        await _login(world, password="not the password")
    with pytest.raises(Rejected) as unknown:
        await _login(world, email="nobody@example.com")
    assert (wrong.value.status, wrong.value.public_message) == (401, unknown.value.public_message)
    assert vars(wrong.value).keys() == vars(unknown.value).keys()


async def test_too_many_failures_close_the_door_for_a_while_even_to_the_right_password(world: World) -> None:
    attempts = LoginAttempts(most=3, window_s=60)
    for _ in range(3):
        with pytest.raises(Rejected):
            await _login(world, password="not the password", attempts=attempts)
    with pytest.raises(Rejected) as closed:
        await _login(world, attempts=attempts)
    assert (closed.value.status, closed.value.retry_after_s) == (429, 60)
    world.clock.advance(60)
    assert await _login(world, attempts=attempts)


async def test_one_address_cannot_try_many_e_mails(world: World) -> None:
    attempts = LoginAttempts(most=3, window_s=60)
    for number in range(3):
        with pytest.raises(Rejected):
            await _login(world, email=f"m{number}@example.com", attempts=attempts, address="192.0.2.7")
    with pytest.raises(Rejected) as closed:
        await _login(world, attempts=attempts, address="192.0.2.7")
    assert closed.value.status == 429
    assert await _login(world, attempts=attempts, address="192.0.2.8")


async def test_guesses_at_one_time_are_counted_like_guesses_in_turn(world: World) -> None:
    attempts = LoginAttempts(most=3, window_s=60)
    guesses = [_login(world, password=f"guess {number}", attempts=attempts) for number in range(8)]
    answers = await asyncio.gather(*guesses, return_exceptions=True)
    statuses = sorted(answer.status for answer in answers if isinstance(answer, Rejected))
    assert statuses == [401] * 3 + [429] * 5


async def test_who_signs_in_often_is_no_guesser(world: World) -> None:
    attempts = LoginAttempts(most=3, window_s=60)
    for _ in range(5):
        assert await _login(world, attempts=attempts, address="192.0.2.7")


def test_the_memory_of_failures_is_bounded() -> None:
    attempts = LoginAttempts(most=1, remembered=5)
    now = from_ms(0)
    for number in range(50):
        attempts.failed(f"email:{number}", now=now)
    attempts.check(*(f"email:{number}" for number in range(45)), now=now)
    with pytest.raises(Rejected):
        attempts.check("email:49", now=now)


async def test_a_browser_reads_with_its_cookie_and_writes_only_from_our_pages(world: World) -> None:
    secret = await _login(world)
    body = {"name": "Acme", "currency": "USD"}
    async with _browser(world, secret) as client:
        assert (await client.get("/api/v1/me")).status_code == 200
        assert (await client.post("/api/v1/tenants", json=body)).status_code == 403
    async with _browser(world, secret, origin="http://evil.example") as client:
        assert (await client.post("/api/v1/tenants", json=body)).status_code == 403
    async with _browser(world, secret, **{"sec-fetch-site": "same-site"}) as client:
        assert (await client.post("/api/v1/tenants", json=body)).status_code == 403
    async with _browser(world, secret, origin="http://control.example") as client:
        assert (await client.post("/api/v1/tenants", json=body)).status_code == 201


async def test_a_cookie_that_is_no_session_opens_nothing(world: World) -> None:
    async with _browser(world, "sys_" + "x" * 43) as client:
        assert (await client.get("/api/v1/me")).status_code == 401
