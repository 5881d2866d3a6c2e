"""A real PostgreSQL for tests: one embedded server a session, one database a test.

The schema is migrated once into a template; a test's own database is a copy of it (~30 ms).
Which database needs which is said by fixtures alone: `database` for the schema, `empty_database`
for tests of the migrations themselves.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest

from app.stack.postgres import APP, OWNER, SUPERUSER, Postgres

_TEMPLATE = "steelyard_template"


@dataclass(frozen=True)
class Database:
    """One test's database.   owner_url, app_url: libpq URLs, as asyncpg takes them."""

    name: str
    owner_url: str
    app_url: str

    @property
    def owner_sqlalchemy_url(self) -> str:
        return self.owner_url.replace("postgresql://", "postgresql+asyncpg://", 1)

    @property
    def app_sqlalchemy_url(self) -> str:
        return self.app_url.replace("postgresql://", "postgresql+asyncpg://", 1)


@dataclass(frozen=True)
class Server:
    """The session's PostgreSQL, and the making and dropping of databases in it."""

    postgres: Postgres

    def create(self, *, template: str = "template0") -> Database:
        name = f"test_{uuid4().hex}"
        self._execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}" OWNER {OWNER}')
        return self._named(name)

    def drop(self, name: str) -> None:
        self._execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def make_template(self) -> str:
        """The name of a database with the newest schema."""
        from migrations import runner

        self._execute(f"CREATE DATABASE {_TEMPLATE} TEMPLATE template0 OWNER {OWNER}")
        _apart(lambda: runner.upgrade(self.postgres.url(_TEMPLATE, role=OWNER)))
        return _TEMPLATE

    def _named(self, name: str) -> Database:
        owner, app = (self.postgres.url(name, role=role) for role in (OWNER, APP))
        return Database(name, owner, app)

    def _execute(self, statement: str) -> None:
        url = self.postgres.url("postgres", role=SUPERUSER)

        _apart(lambda: asyncio.run(_executed(url, statement)))


async def _executed(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


def _apart(act: Callable[[], None]) -> None:
    """Act in another thread, so that the loop of the test's own thread stays as it is."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        thread.submit(act).result()


@pytest.fixture(scope="session")
def database_server() -> Iterator[Server]:
    """The session's PostgreSQL, in a folder that is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="sy-test-"))
    folder.chmod(0o711)
    postgres = Postgres(folder / "postgres", durable=False)
    try:
        postgres.start()
        yield Server(postgres)
    finally:
        postgres.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def _template(database_server: Server) -> str:
    return database_server.make_template()


@pytest.fixture
def database(database_server: Server, _template: str) -> Iterator[Database]:
    """A database with the newest schema, all to this test."""
    fresh = database_server.create(template=_template)
    yield fresh
    database_server.drop(fresh.name)


@pytest.fixture
def empty_database(database_server: Server) -> Iterator[Database]:
    """A database without any schema, for tests of the migrations."""
    fresh = database_server.create()
    yield fresh
    database_server.drop(fresh.name)
