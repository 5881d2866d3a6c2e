"""Keys and texts that leaked elsewhere, and keys that outlived their end on other processes."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import asyncpg
import httpx

from app.core import ids
from tests.app.gateway.house import chat, execute
from tests.database import Database
from tests.field.pair import Pair, open_pair, until

_SECOND_KEY = "sk-sy-" + "n" * 43
_INSERT_KEY = (
    "INSERT INTO api_key (id, tenant_id, project_id, name, digest, prefix, last_four)"
    " VALUES ($1, $2, $3, 'second', $4, 'sk-sy-nnnn', 'nnnn')"
)
_CANARY = "canary-7f3a9c"
_WRONG_KEY = "sk-sy-wrong" + _CANARY


async def test_a_key_works_and_ends_at_every_process_alike(database: Database, tmp_path: Path) -> None:
    async with open_pair(database, tmp_path, balance=10**13) as pair:
        seeded, key_id = pair.seeded, ids.key_id()
        digest = hashlib.sha256(_SECOND_KEY.encode()).digest()
        await pair.until_both(401, chat(), secret=_SECOND_KEY)
        await execute(database, _INSERT_KEY, key_id, seeded.tenant_id, seeded.project_id, digest)
        await pair.until_both(200, chat(), secret=_SECOND_KEY)
        await execute(database, "UPDATE api_key SET revoked_at = now() WHERE id = $1", key_id)
        await pair.until_both(401, chat(), secret=_SECOND_KEY)


def _bodies(text: str) -> list[dict[str, Any]]:
    """Requests of every kind of ending, all of which carry this text."""
    faults = ("status:500", "status:400", "reset", "die:2", "error:2")
    broken = [
        chat(f"[simulator fault={fault}] {text}", stream=streamed)
        for fault in faults
        for streamed in (True, False)
    ]
    return [chat(text), chat(text, stream=True), chat(text, max_tokens="many"), *broken]


async def _bother(pair: Pair, text: str) -> list[httpx.Response]:
    """The answers to them, with a good key, with a wrong one, and with the key where it should not be."""
    bodies = [*_bodies(text), {**chat(text), "model": _CANARY}]
    answers = [
        await pair.ask(at % 2, body, secret=secret)
        for at, body in enumerate(bodies)
        for secret in (None, _WRONG_KEY)
    ]
    return [*answers, await pair.client.post(f"{pair.urls[0]}?key={pair.seeded.secret}", json=chat(text))]


async def _everything_in(database: Database) -> str:
    """Every row of every table, as text."""
    connection = await asyncpg.connect(database.owner_url)
    try:
        tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        texts = [
            row["text"]
            for table in tables
            for row in await connection.fetch(f'SELECT t::text AS text FROM "{table["tablename"]}" t')
        ]
    finally:
        await connection.close()
    return "\n".join(texts)


async def test_no_key_and_no_prompt_is_found_in_logs_journal_tables_or_errors(
    database: Database, tmp_path: Path
) -> None:
    prompt = f"{_CANARY} says nothing"
    async with open_pair(database, tmp_path, balance=10**13) as pair:
        answers = await _bother(pair, prompt)
        served = {answer.headers["x-request-id"] for answer in answers if answer.status_code == 200}

        async def all_posted() -> bool:
            text = await _everything_in(database)
            return all(request_id in text for request_id in served)

        await until(all_posted)
        secrets = (pair.seeded.secret, _WRONG_KEY)
    stored = await _everything_in(database)
    files = [path.read_bytes().decode("utf-8", "replace") for path in tmp_path.rglob("*") if path.is_file()]
    refused = [answer.text for answer in answers if answer.status_code == 401]
    everything = [*files, stored, *(answer.text for answer in answers)]
    assert files
    assert refused
    assert served
    assert not [text for text in everything for secret in secrets if secret in text]
    assert not [text for text in (*files, stored, *refused) if prompt in text]
