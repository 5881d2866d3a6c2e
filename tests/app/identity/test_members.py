"""What a change of a member does to what they opened before."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from app.core.clock import from_ms
from app.identity.sessions import SESSION_COOKIE, LoginAttempts, login
from app.identity.setup import create_admin
from tests.app.control.world import ADMIN, PASSWORD, World


async def _signed_in(world: World, email: str) -> str:
    """The cookie of a new session."""
    async with world.engine.begin() as connection:
        secret = await login(
            connection,
            email=email,
            password=PASSWORD,
            attempts=LoginAttempts(),
            now=from_ms(world.clock.now_ms()),
            lifetime=timedelta(hours=12),
        )
    return f"{SESSION_COOKIE}={secret}"


async def _is_open(world: World, cookie: str) -> bool:
    async with world.client(cookie=cookie) as browser:
        return (await browser.get("/api/v1/me")).status_code == 200


@pytest.mark.parametrize(
    ("change", "stays"),
    [
        ({"name": "Ada"}, True),
        ({"password": "another long password"}, False),
        ({"status": "disabled"}, False),
    ],
)
async def test_a_new_password_and_a_disabling_end_the_members_sessions(
    world: World, change: dict[str, Any], stays: bool
) -> None:
    other = {"email": "ada@example.com", "role": "finance", "password": PASSWORD}
    made = await world.made("/members", other)
    theirs, ours = await _signed_in(world, other["email"]), await _signed_in(world, ADMIN)
    assert (await world.operator.patch(f"/api/v1/members/{made['id']}", json=change)).is_success
    await world.operator.patch(f"/api/v1/members/{made['id']}", json={"status": "active"})
    assert await _is_open(world, theirs) is stays
    assert await _is_open(world, ours)


async def test_setting_up_an_operator_anew_ends_the_sessions_of_the_old_password(world: World) -> None:
    cookie = await _signed_in(world, ADMIN)
    async with world.engine.begin() as connection:
        now = from_ms(world.clock.now_ms())
        await create_admin(connection, email=ADMIN, password="quite another password", now=now)
    assert not await _is_open(world, cookie)
