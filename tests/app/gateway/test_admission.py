"""Keys, models, prices and money, through the running gateway; changes take effect within a second."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from app.core import ids
from app.core.money import parse_picos
from billing.metering.model import Outcome
from tests.app.gateway.house import MODEL, House, chat, execute, open_house
from tests.database import Database

_CHAT = "/v1/chat/completions"


_NEW_KEY = (
    "INSERT INTO api_key (id, tenant_id, project_id, name, digest, prefix, last_four, models)"
    " VALUES ($1, $2, $3, 'new', $4, 'sk-sy-new', 'new!', $5)"
)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


async def _until(
    house: House, accepts: Callable[[httpx.Response], bool], **request: object
) -> httpx.Response:
    """Ask again and again until the answer is as expected; a change has one second to take effect."""
    async with asyncio.timeout(1.0):
        while True:
            answer = await house.client.post(_CHAT, json=chat(**request))
            if accepts(answer):
                return answer


def _is(status: int) -> Callable[[httpx.Response], bool]:
    return lambda answer: answer.status_code == status


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ("UPDATE api_key SET revoked_at = now()", 401, "key_revoked"),
        ("UPDATE api_key SET expires_at = now() - interval '1 second'", 401, "key_expired"),
        ("UPDATE tenant SET status = 'suspended'", 403, "tenant_suspended"),
        ("UPDATE project SET status = 'archived'", 403, "project_archived"),
        ("UPDATE api_key SET scopes = '{usage:read}'", 403, "scope_missing"),
        ("UPDATE api_key SET models = '{other}'", 403, "model_not_allowed"),
        ("UPDATE model SET status = 'retired'", 404, "model_unknown"),
        ("UPDATE tenant SET currency = 'EUR'", 503, "price_missing"),
        ("UPDATE backend SET status = 'draining'", 503, "no_healthy_backend"),
    ],
)
async def test_a_change_takes_effect_within_a_second(
    database: Database, tmp_path: Path, change: str, status: int, code: str
) -> None:
    async with open_house(database, tmp_path) as house:
        assert (await house.client.post(_CHAT, json=chat())).status_code == 200
        await execute(database, change)
        answer = await _until(house, _is(status))
        assert answer.json()["error"]["code"] == code
        if code != "no_healthy_backend":
            assert (await house.until_refused(code)).status == status


async def test_a_new_key_works_within_a_second(database: Database, tmp_path: Path) -> None:
    async with open_house(database, tmp_path) as house:
        secret, seeded = "sk-sy-new", house.seeded
        await execute(
            database,
            _NEW_KEY,
            ids.key_id(),
            seeded.tenant_id,
            seeded.project_id,
            _digest(secret),
            [],
        )
        house.client.headers["authorization"] = f"bearer {secret}"
        await _until(house, _is(403))
        assert (await house.client.get("/v1/models")).json()["data"] == []


async def test_a_request_that_the_wallet_does_not_cover_is_a_429_that_says_why(
    database: Database, tmp_path: Path
) -> None:
    async with open_house(database, tmp_path, balance=300_000_000) as house:
        first = await house.client.post(_CHAT, json=chat(max_tokens=1))
        assert first.status_code == 429
        error = first.json()["error"]
        assert (error["type"], error["code"]) == ("insufficient_quota", "balance_too_low")
        assert error["currency"] == "USD"
        assert parse_picos(error["available"]) == parse_picos(error["limit"]) == 300_000_000
        assert parse_picos(error["needed"]) > 300_000_000
        assert house.admitted() == []
        assert (await house.until_refused("balance_too_low")).limit == error["limit"]


async def test_a_grant_lets_the_next_request_in(database: Database, tmp_path: Path) -> None:
    async with open_house(database, tmp_path, balance=0) as house:
        assert (await house.client.post(_CHAT, json=chat())).status_code == 429
        await execute(database, "UPDATE allowance SET limit_amount = 1000000000000")
        await _until(house, _is(200))


async def test_money_is_spent_to_the_last_request_that_fits_and_no_further(
    database: Database, tmp_path: Path
) -> None:
    balance = 700_000_000
    async with open_house(database, tmp_path, balance=balance) as house:
        answers = await asyncio.gather(*(house.client.post(_CHAT, json=chat()) for _ in range(40)))
        statuses = {answer.status_code for answer in answers}
        admitted = house.admitted()
        assert statuses == {200, 429}
        assert all(one.holds[0].amount <= balance for one in admitted)
        spent = sum(settled.cost_picos for settled in house.settled())
        assert 0 < spent <= balance
        assert len(admitted) == sum(answer.status_code == 200 for answer in answers)


async def test_a_tenant_without_a_wallet_can_not_spend(database: Database, tmp_path: Path) -> None:
    async with open_house(database, tmp_path) as house:
        secret, tenant_id, project_id = "sk-sy-poor", ids.tenant_id(), ids.project_id()
        await execute(
            database, "INSERT INTO tenant (id, name, currency) VALUES ($1, 'Poor', 'USD')", tenant_id
        )
        await execute(
            database, "INSERT INTO project (id, tenant_id, name) VALUES ($1, $2, 'p')", project_id, tenant_id
        )
        await execute(database, _NEW_KEY, ids.key_id(), tenant_id, project_id, _digest(secret), None)
        house.client.headers["authorization"] = f"Bearer {secret}"
        answer = await _until(house, _is(429))
        assert answer.json()["error"]["message"] == "The tenant has no wallet."


async def test_a_model_that_only_an_alias_names_is_served_under_it(
    database: Database, tmp_path: Path
) -> None:
    async with open_house(database, tmp_path, served=MODEL) as house:
        answer = await house.client.post(_CHAT, json=chat())
        assert answer.json()["model"] == MODEL


async def test_the_catalogue_survives_a_database_that_goes_and_comes(
    database: Database, tmp_path: Path
) -> None:
    async with open_house(database, tmp_path) as house:
        kill = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND usename = 'steelyard_app'"
        )
        await execute(Database(database.name, database.app_url, ""), kill)
        assert (await house.client.post(_CHAT, json=chat())).status_code == 200
        await execute(database, "UPDATE api_key SET revoked_at = now()")
        async with asyncio.timeout(5):
            while (await house.client.post(_CHAT, json=chat())).status_code != 401:
                await asyncio.sleep(0.02)


async def test_a_second_backend_takes_over_before_the_first_byte(database: Database, tmp_path: Path) -> None:
    async with open_house(database, tmp_path) as house:
        await execute(
            database,
            "INSERT INTO backend (id, deployment_id, base_url, engine, served_model, weight)"
            " VALUES ($1, $2, 'http://127.0.0.1:9', 'vllm', 'sim-model', 1000)",
            ids.backend_id(),
            house.seeded.deployment_id,
        )
        answers = [await house.client.post(_CHAT, json=chat()) for _ in range(6)]
        assert {answer.status_code for answer in answers} == {200}
        assert all(settled.outcome is Outcome.COMPLETED for settled in house.settled())
