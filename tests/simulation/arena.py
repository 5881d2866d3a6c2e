"""PostgreSQL for many simulated runs: one database, emptied between them, whose clock is the simulation's.

Statements are asked in place: virtual time stands still, the answer is waited for, so one statement is
outstanding at a time and every run of a seed asks the same ones in the same order. A statement that waits
for a lock is found out by asking the server who blocks it; it is then set aside, and the world goes on.

The server's own clock would tell real time. So a schema before `pg_catalog` in the search path has its own
`clock_timestamp` and `now`, which read a sequence: sequences are seen by all at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import asyncpg
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

_EPOCH_MS = 1_796_083_197_000
"""2026-11-30 23:59:57 UTC: three seconds before a day, a month and a billing period end."""
_PATIENCE_S = 0.003
"""Real time after which it is asked whether a statement waits for a lock."""
_GRAIN_US = 5000
"""How far the server's clock may be behind."""
_CLOCK = """
CREATE SCHEMA sim;
CREATE SEQUENCE sim.clock;
CREATE FUNCTION sim.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
  $$ SELECT timestamptz 'epoch' + last_value * interval '1 microsecond' FROM sim.clock $$;
CREATE FUNCTION sim.now() RETURNS timestamptz LANGUAGE sql VOLATILE AS
  $$ SELECT timestamptz 'epoch' + last_value * interval '1 microsecond' FROM sim.clock $$;
GRANT USAGE ON SCHEMA sim TO PUBLIC;
GRANT SELECT ON SEQUENCE sim.clock TO PUBLIC;
"""
_LIMITS = """
SELECT a.id, a.limit_amount::text, a.spent::text, a.unleased::text,
  coalesce(sum(l.granted - l.settled - l.returned), 0)::text, coalesce(sum(l.uncovered), 0)::text,
  coalesce(a.burst, -1)::text, coalesce(a.level_micros, 0)::text, (a.limit_source IS NULL
    AND a.scope_kind = 'tenant')::int::text
FROM allowance a LEFT JOIN lease l ON l.allowance_id = a.id GROUP BY a.id ORDER BY a.id
"""
EPOCH_MS = _EPOCH_MS


@dataclass(frozen=True)
class Standing:
    """An allowance as the database has it, in its own units."""

    allowance_id: str
    limit: int
    spent: int
    unleased: int
    outstanding: int
    uncovered: int
    burst: int
    level_micros: int
    is_wallet: int

    @property
    def is_rate(self) -> bool:
        return self.burst >= 0

    @property
    def most(self) -> int:
        """What may be taken; of a rate, what its bucket and all leases may have, in millionths."""
        return self.burst * 1_000_000 if self.is_rate else self.limit

    @property
    def taken(self) -> int:
        """Committed and held, but for what no lease covered; of a rate, in its bucket and in leases."""
        if self.is_rate:
            return self.level_micros + self.outstanding * 1_000_000
        return self.spent + self.outstanding - self.unleased


class Asking:
    """A statement that is on its way; `answered` is called once, if it had to wait for a lock."""

    def __init__(self, task: asyncio.Task[Any], pid: int) -> None:
        self.task = task
        self.pid = pid
        self.answered: Callable[[], None] | None = None


class Arena:
    """The real database.   runs: how many it has seen."""

    def __init__(self, superuser_url: str, app_url: str) -> None:
        self.runs = 0
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_ignored)
        self._app_url = app_url
        self._idle: list[Any] = []
        self._waiting: list[Asking] = []
        self._heard: list[str] = []
        self._clock_us = 0
        self._script: list[str] = []
        self._engines: dict[str, AsyncEngine] = {}
        self._reader = create_async_engine(app_url.replace("://", "+asyncpg://", 1), pool_size=1)
        self._dials: dict[str, Callable[[], Awaitable[Any]]] = {}
        self._root: Any = self.do(asyncpg.connect(superuser_url))
        self._prepare()
        self._tables = self._list_tables()

    def do(self, awaited: Any) -> Any:
        """What comes of real work, waited for while the simulation stands still."""
        running = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        try:
            return self._loop.run_until_complete(awaited)
        finally:
            asyncio._set_running_loop(running)

    def empty(self) -> None:
        """Take all rows out, history included."""
        for asking in list(self._waiting):
            self.break_off(asking)
        self._heard.clear()
        deletes = "".join(f"DELETE FROM {table};" for table in self._tables)
        script = f"SET session_replication_role = replica;{deletes}SET session_replication_role = origin"
        self.do(self._root.execute(script))

    def vacuum(self) -> None:
        """Clear what the deleted rows have left."""
        self.do(self._root.execute("VACUUM"))

    def set_clock(self, now_s: float) -> None:
        """Let the server's clock show this virtual time."""
        clock_us = _EPOCH_MS * 1000 + round(now_s * 1_000_000)
        if abs(clock_us - self._clock_us) >= _GRAIN_US:
            self._clock_us = clock_us
            self.do(self._root.execute(f"SELECT setval('sim.clock', {clock_us})"))

    def connect(self) -> Any:
        """A real connection of the application's role, as good as new."""
        if self._idle:
            return self._idle.pop()
        return self.do(asyncpg.connect(self._app_url))

    def ask(self, connection: Any, act: Callable[[], Awaitable[Any]]) -> Asking:
        """Do it on this connection. The task is done, unless it waits for a lock that another one holds."""
        asking = self.do(self._ask(connection, act))
        assert isinstance(asking, Asking)
        if not asking.task.done():
            self._waiting.append(asking)
        return asking

    def settle_waiting(self) -> None:
        """See which of the statements that wait for locks have got them meanwhile."""
        for asking in list(self._waiting):
            if asking in self._waiting and self.do(self._attend(asking)):
                self._waiting.remove(asking)
                if asking.answered is not None:
                    asking.answered()

    def take_back(self, connection: Any) -> None:
        """Forget the session: roll back, drop what it made, keep it for the next one."""
        assert connection not in self._idle, "a session is given back once"
        if connection.is_closed() or self._loop.is_closed():
            return
        self.do(connection.reset())
        self.do(connection.execute("DISCARD TEMP"))
        self._idle.append(connection)

    def break_off(self, asking: Asking) -> None:
        """End the session of a statement that waits."""
        if asking in self._waiting:
            self._waiting.remove(asking)
        self.do(self._break_off(asking))
        asking.task.exception()
        if asking.answered is not None:
            asking.answered()

    def look(self) -> tuple[list[str], list[Standing]]:
        """What was notified since the last look, and every allowance as it is committed now.

        Sorted: in which order one commit notifies follows where its rows happen to lie.
        A listener is sent what was notified before the answer to any statement of its own.
        """
        rows = self.do(self._root.fetch(_LIMITS))
        heard, self._heard = sorted(self._heard), []
        return heard, [Standing(row[0], *(int(value) for value in row[1:])) for row in rows]

    def fetch(self, query: str, *arguments: Any) -> list[Any]:
        """Rows, as the superuser sees them."""
        rows: list[Any] = self.do(self._root.fetch(query, *arguments))
        return rows

    def read(self, act: Callable[[AsyncConnection], Awaitable[None]]) -> None:
        """Look at the database as the application does, in a transaction that leaves nothing behind."""
        self.do(self._read(act))

    async def _read(self, act: Callable[[AsyncConnection], Awaitable[None]]) -> None:
        async with self._reader.connect() as connection:
            await act(connection)

    def execute(self, script: str, *arguments: Any) -> None:
        self.do(self._root.execute(script, *arguments))

    def insert(self, table: str, **values: Any) -> None:
        """Insert one row with the next `flush`."""
        columns, literals = ", ".join(values), ", ".join(map(_literal, values.values()))
        self._script.append(f"INSERT INTO {table} ({columns}) VALUES ({literals});")

    def flush(self, last: str = "") -> None:
        """Insert what was asked for, and do this last."""
        script, self._script = "".join(self._script), []
        self.do(self._root.execute(script + last))

    def engine(self, name: str, dial: Callable[[], Awaitable[Any]]) -> AsyncEngine:
        """SQLAlchemy's engine of a kind of process, kept over all runs for what it has compiled.

        dial: connects the process that asks.
        """
        self._dials[name] = dial
        if name not in self._engines:

            async def connect() -> Any:
                return await self._dials[name]()

            self._engines[name] = create_async_engine(
                "postgresql+asyncpg://", async_creator=connect, pool_size=2
            )
        return self._engines[name]

    def close(self) -> None:
        self.do(self._reader.dispose())
        for connection in (*self._idle, self._root):
            connection.terminate()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    def _prepare(self) -> None:
        self.do(self._root.execute(_CLOCK))
        name = self.do(self._root.fetchval("SELECT current_database()"))
        self.do(self._root.execute(f'ALTER DATABASE "{name}" SET search_path = sim, pg_catalog, public'))
        self.do(self._root.add_listener("steelyard_changes", self._hear))

    def _hear(self, *told: Any) -> None:
        self._heard.append(str(told[-1]))

    def _list_tables(self) -> list[str]:
        query = (
            "SELECT format('public.%I', tablename) AS name FROM pg_tables"
            " WHERE schemaname = 'public' AND tablename NOT LIKE 'alembic%' ORDER BY 1"
        )
        tables = [row["name"] for row in self.fetch(query)]
        for table in tables:
            self.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = false)")
        return tables

    async def _ask(self, connection: Any, act: Callable[[], Awaitable[Any]]) -> Asking:
        task = asyncio.ensure_future(act())
        asking = Asking(task, connection.get_server_pid())
        await self._attend(asking)
        return asking

    async def _attend(self, asking: Asking) -> bool:
        """True when it is answered, False when it waits for somebody else's lock."""
        while True:
            done, _ = await asyncio.wait({asking.task}, timeout=_PATIENCE_S)
            if done:
                return True
            blockers = await self._root.fetchval("SELECT cardinality(pg_blocking_pids($1))", asking.pid)
            if blockers and not asking.task.done():
                return False

    async def _break_off(self, asking: Asking) -> None:
        await self._root.execute("SELECT pg_terminate_backend($1, 5000)", asking.pid)
        await asyncio.wait({asking.task})


def _ignored(_loop: asyncio.AbstractEventLoop, _context: dict[str, Any]) -> None:
    """The driver says that a session was reset within a transaction: so are those of the dead."""


def _literal(value: Any) -> str:
    if isinstance(value, bytes):
        return f"'\\x{value.hex()}'"
    return str(value) if isinstance(value, bool | int) else f"'{value}'"
