"""What tasks have cost so far, and the bill of one: its usage by model; corrections are in it."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

import msgspec
from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.ids import TaskId
from billing.journal.tables import usage_event

_MODELS = text("""
SELECT task_id, model_id, min(model_name) AS model, min(currency) AS currency, count(*) AS requests,
  sum(billed_input) AS input, sum(billed_input_cached) AS input_cached,
  sum(billed_input_cache_write) AS input_cache_write, sum(billed_output) AS output, sum(cost) AS cost,
  min(admitted_at) AS first_at, max(admitted_at) AS last_at, coalesce(sum((
    SELECT sum(c.amount) FROM usage_correction c WHERE c.request_id = e.request_id)), 0) AS given_back
FROM usage_event e WHERE task_id = ANY (CAST(:tasks AS text[]))
GROUP BY task_id, model_id ORDER BY task_id, sum(cost) DESC, model_id
""")


class Line(msgspec.Struct, frozen=True):
    """What a task used of one model: billed tokens, picos.   given_back: by corrections, of `cost`."""

    model_id: str
    model: str
    currency: str
    requests: int
    input: int
    input_cached: int
    input_cache_write: int
    output: int
    cost: int
    given_back: int
    first_at: datetime
    last_at: datetime

    @property
    def tokens(self) -> int:
        return self.input + self.input_cached + self.input_cache_write + self.output

    @property
    def net_cost(self) -> int:
        return self.cost - self.given_back


async def bills(connection: AsyncConnection, task_ids: Collection[TaskId]) -> dict[TaskId, list[Line]]:
    """The lines of tasks by model, the dearest first; a task without a settled request has none."""
    found: dict[TaskId, list[Line]] = {task_id: [] for task_id in task_ids}
    for row in (await connection.execute(_MODELS, {"tasks": list(task_ids)})).mappings():
        sums = ("requests", "input", "input_cached", "input_cache_write", "output", "cost", "given_back")
        facts = {name: value for name, value in row.items() if name != "task_id"}
        found[row["task_id"]].append(Line(**facts | {name: int(row[name]) for name in sums}))
    return found


async def cost_of(connection: AsyncConnection, task_id: TaskId) -> int:
    """The picos that are settled of a task, as they were charged: what counts against its budget."""
    total = select(func.coalesce(func.sum(usage_event.c.cost), 0)).where(usage_event.c.task_id == task_id)
    return int(await connection.scalar(total) or 0)
