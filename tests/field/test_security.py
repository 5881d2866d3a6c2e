"""Keys and texts that leaked elsewhere, and keys that outlived their end on other processes."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import asyncpg
import httpx

from app.core import ids
from tests.app.gateway.house import SERVED, Seeded, add_backend, chat, execute, free_port, seed
from tests.app.gateway.process import gateway_process, settler_process, simulator_process
from tests.database import Database

_CHAT = "/v1/chat/completions"
_SECOND_KEY = "sk-sy-" + "n" * 43
_INSERT_KEY = (
    "INSERT INTO api_key (id, tenant_id, project_id, name, digest, prefix, last_four)"
    " VALUES ($1, $2, $3, 'second', $4, 'sk-sy-nnnn', 'nnnn')"
)
_CANARY = "canary-7f3a9c"
_WRONG_KEY = "sk-sy-wrong" + _CANARY


async def _until_everywhere(urls: list[str], status: int, *, secret: str) -> None:
    """Wait until every process answers so to this key."""
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {secret}"}, timeout=20) as client:
        async with asyncio.timeout(15):
            for url in urls:
                while (await client.post(url, json=chat())).status_code != status:
                    await asyncio.sleep(0.02)


async def test_a_key_works_and_ends_at_every_process_alike(database: Database, tmp_path: Path) -> None:
    ports = [free_port(), free_port()]
    async with simulator_process(tmp_path, model=SERVED) as engine_url:
        seeded = await seed(database, balance=10**13)
        await add_backend(database, seeded, engine_url)
        async with (
            gateway_process(database, tmp_path, ports[0]),
            gateway_process(database, tmp_path, ports[1]),
        ):
            urls = [f"http://127.0.0.1:{port}{_CHAT}" for port in ports]
            await _until_everywhere(urls, 401, secret=_SECOND_KEY)
            digest = hashlib.sha256(_SECOND_KEY.encode()).digest()
            key_id = ids.key_id()
            await execute(database, _INSERT_KEY, key_id, seeded.tenant_id, seeded.project_id, digest)
            await _until_everywhere(urls, 200, secret=_SECOND_KEY)
            await execute(database, "UPDATE api_key SET revoked_at = now() WHERE id = $1", key_id)
            await _until_everywhere(urls, 401, secret=_SECOND_KEY)


async def _bother(url: str, seeded: Seeded) -> list[httpx.Response]:
    """Requests of every kind of ending, all of which carry the canary in their text."""
    text = f"{_CANARY} says nothing"
    bodies = [chat(text), chat(text, stream=True), chat(text, max_tokens="many"), chat(text, model=_CANARY)]
    bodies += [
        chat(f"[simulator fault={fault}] {text}", stream=streamed)
        for fault in ("status:500", "status:400", "reset", "die:2", "error:2")
        for streamed in (True, False)
    ]
    async with httpx.AsyncClient(timeout=20) as client:
        answers = []
        for body in bodies:
            for secret in (seeded.secret, _WRONG_KEY):
                headers = {"authorization": f"Bearer {secret}"}
                answers.append(await client.post(url, json=body, headers=headers))
        answers.append(await client.post(f"{url}?key={seeded.secret}", json=chat(text)))
        return answers


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


def _all_in(text: str, request_ids: set[str]) -> bool:
    return all(request_id in text for request_id in request_ids)


async def test_no_key_and_no_prompt_is_found_in_logs_journal_tables_or_errors(
    database: Database, tmp_path: Path
) -> None:
    port = free_port()
    async with simulator_process(tmp_path, model=SERVED) as engine_url:
        seeded = await seed(database, balance=10**13)
        await add_backend(database, seeded, engine_url)
        async with (
            gateway_process(database, tmp_path, port),
            settler_process(database, tmp_path),
        ):
            answers = await _bother(f"http://127.0.0.1:{port}{_CHAT}", seeded)
            admitted = {
                answer.headers["x-request-id"]
                for answer in answers
                if answer.status_code != 401 and "x-request-id" in answer.headers
            }
            async with asyncio.timeout(20):
                while not _all_in(await _everything_in(database), admitted):
                    await asyncio.sleep(0.1)
        stored = await _everything_in(database)
    files = [path.read_bytes().decode("utf-8", "replace") for path in tmp_path.rglob("*") if path.is_file()]
    refused = [answer.text for answer in answers if answer.status_code == 401]
    assert files
    assert refused
    for secret in (seeded.secret, _WRONG_KEY):
        assert not [text for text in (*files, stored, *(a.text for a in answers)) if secret in text]
    prompt = f"{_CANARY} says nothing"
    assert not [text for text in (*files, stored, *refused) if prompt in text]
