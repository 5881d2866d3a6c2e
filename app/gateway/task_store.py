"""Keeps tasks in PostgreSQL: one statement that finds or makes one."""

from __future__ import annotations

import asyncio

import asyncpg

from app.core import ids
from app.core.errors import DependencyError
from app.core.ids import AllowanceId, TaskId
from app.gateway.model import Principal
from app.gateway.tasks import Named, Task
from app.gateway.terms import Drawn

_OPEN = "SELECT * FROM quota_open_task($1, $2, $3, $4, $5, $6, $7)"
_FIND = """
SELECT id, allowance_id, declared::text, budget::text, status FROM task WHERE project_id = $1 AND name = $2
"""
_TIMEOUT_S = 2.0


class PostgresTasks:
    """The tasks of a database."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool

    async def open(self, principal: Principal, named: Named) -> tuple[Task, bool]:
        """The task of this name in the key's project, new if True. Raises DependencyError."""
        key, task_id = principal.key, ids.task_id()
        row = await self._row(
            _OPEN,
            task_id,
            key.tenant_id,
            key.project_id,
            key.key_id,
            named.name,
            named.budget,
            ids.allowance_id(),
        )
        assert row is not None
        return _task(row), row["id"] == task_id

    async def find(self, principal: Principal, named: Named) -> Task | None:
        """The task of this name in the key's project, None if there is none. Raises DependencyError."""
        row = await self._row(_FIND, principal.key.project_id, named.name)
        return None if row is None else _task(row)

    async def _row(self, query: str, *values: object) -> asyncpg.Record | None:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return await self._pool.fetchrow(query, *values)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError) as error:
            raise DependencyError("the tasks can't be reached") from error


def _task(row: asyncpg.Record) -> Task:
    task_id = TaskId(row["id"])
    drawn = None
    if row["allowance_id"] is not None:
        drawn = Drawn(AllowanceId(row["allowance_id"]), "task", task_id, "picos")
    return Task(task_id, _picos(row["declared"]), _picos(row["budget"]), drawn, row["status"] == "closed")


def _picos(amount: str | None) -> int | None:
    return None if amount is None else int(amount)
