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
_TIMEOUT_S = 2.0


class PostgresTasks:
    """The tasks of a database."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool

    async def open(self, principal: Principal, named: Named) -> Task:
        """The task of this name in the key's project, made if it is new. Raises DependencyError."""
        key = principal.key
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                row = await self._pool.fetchrow(
                    _OPEN,
                    ids.task_id(),
                    key.tenant_id,
                    key.project_id,
                    key.key_id,
                    named.name,
                    named.budget,
                    ids.allowance_id(),
                )
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError) as error:
            raise DependencyError("the tasks can't be reached") from error
        assert row is not None
        task_id = TaskId(row["id"])
        drawn = None
        if row["allowance_id"] is not None:
            drawn = Drawn(AllowanceId(row["allowance_id"]), "task", task_id, "picos")
        return Task(task_id, _picos(row["declared"]), _picos(row["budget"]), drawn, row["status"] == "closed")


def _picos(amount: str | None) -> int | None:
    return None if amount is None else int(amount)
