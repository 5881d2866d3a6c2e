"""Tasks: a client names a piece of work, and its requests have one bill and perhaps one budget.

`X-Steelyard-Task: <name>` puts a request into a task of its key's project; `X-Steelyard-Task-Budget: 2.50`
gives the task a budget with its first request. A task is made, or looked up, by one round trip when a process
first hears of it; then it is remembered, until it changes or is not heard of for long.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple, Protocol

import msgspec

from app.core.clock import Clock
from app.core.errors import DependencyError, Rejected, RejectReason
from app.core.ids import ProjectId, TaskId
from app.core.money import format_picos, parse_picos
from app.gateway.model import Headers, Principal
from app.gateway.terms import Drawn
from billing.quota.bucket import Bucket
from billing.quota.model import Rate

NAME, BUDGET = b"x-steelyard-task", b"x-steelyard-task-budget"
MAX_NAME = 200
MAX_BUDGET_PICOS = 10**24
MOST_REMEMBERED = 50_000
NEW_TASKS = Rate(per_minute=600, burst=1000)
"""New tasks of a project at one process: they stay, so there is a bound on how fast anybody can make them."""
FRESH_S = 30.0
"""How long a task is believed unchanged if nothing is heard of it: a notification may be missed."""


class Task(msgspec.Struct, frozen=True):
    """A task as it stands.   declared: the budget of its first request.   budget: what it is now, in picos.

    drawn: its budget's allowance, None without a budget.
    """

    task_id: TaskId
    declared: int | None
    budget: int | None
    drawn: Drawn | None
    is_closed: bool


class Named(NamedTuple):
    """What a request says of its task."""

    name: str
    budget: int | None


class TaskStore(Protocol):
    """Where tasks are kept."""

    async def open(self, principal: Principal, named: Named) -> tuple[Task, bool]:
        """The task of this name, made if it is new: then True. Raises DependencyError."""
        ...

    async def find(self, principal: Principal, named: Named) -> Task | None:
        """The task of this name, None if there is none. Raises DependencyError."""
        ...


def named_in(headers: Headers) -> Named | None:
    """The task that the headers name, None if they name none. Raises Rejected (400)."""
    given = [(header, value) for header, value in headers if header in (NAME, BUDGET)]
    told = dict(given)
    if len(told) < len(given):
        raise _invalid("`X-Steelyard-Task` and `X-Steelyard-Task-Budget` are given once.")
    name, budget = told.get(NAME), told.get(BUDGET)
    if name is None:
        if budget is None:
            return None
        raise _invalid("`X-Steelyard-Task-Budget` needs `X-Steelyard-Task`, the task's name.")
    return Named(_name(name), None if budget is None else _budget(budget))


class TaskDesk:
    """Knows the tasks that this process' requests name."""

    def __init__(self, store: TaskStore, *, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._known: dict[tuple[ProjectId, str], tuple[float, Task]] = {}
        self._names: dict[TaskId, tuple[ProjectId, str]] = {}
        self._opening: dict[tuple[ProjectId, Named], asyncio.Task[Task]] = {}
        self._new: dict[ProjectId, Bucket] = {}
        self._notices = 0
        self.opened = 0
        """Round trips so far."""

    async def find(self, headers: Headers, principal: Principal) -> Task | None:
        """The open task that a request belongs to, None if it names none.

        Raises Rejected: 400 if the headers can't be read, 409 if the task is closed or has another budget,
        429 if it is one new task too many, 503 if it is not known yet and can't be looked up.
        """
        named = named_in(headers)
        if named is None:
            return None
        place = principal.key.project_id, named.name
        known = self._known.get(place)
        if known is None or known[0] <= self._clock.monotonic():
            task = await self._open(principal, named)
        else:
            task = known[1]
        _check(task, named, currency=principal.tenant.currency)
        return task

    def notice(self, task_id: TaskId) -> None:
        """It was closed, or has another budget: look again."""
        self._notices += 1
        place = self._names.pop(task_id, None)
        if place is not None:
            self._known.pop(place, None)

    async def _open(self, principal: Principal, named: Named) -> Task:
        """One round trip for all who come with the same name meanwhile, and it outlives whoever gives up."""
        place = principal.key.project_id, named
        opening = self._opening.get(place)
        if opening is None:
            opening = asyncio.get_running_loop().create_task(self._ask(principal, named), name="open-task")
            self._opening[place] = opening
            opening.add_done_callback(lambda _: self._opening.pop(place, None))
        try:
            return await asyncio.shield(opening)
        except DependencyError:
            raise Rejected(
                RejectReason.TASK_UNAVAILABLE,
                "The task is new to this gateway, and can't be looked up at the moment.",
                status=503,
                retry_after_s=1.0,
            ) from None

    async def _ask(self, principal: Principal, named: Named) -> Task:
        notices = self._notices
        self.opened += 1
        task = await self._make_or_find(principal, named)
        if notices == self._notices:  # else it may be this one that has changed meanwhile
            self._remember((principal.key.project_id, named.name), task)
        return task

    async def _make_or_find(self, principal: Principal, named: Named) -> Task:
        """A project that has made too many of late has those that it has, and no new one."""
        project_id = principal.key.project_id
        now = self._clock.monotonic()
        bucket = self._new.get(project_id)
        if bucket is None:
            bucket = self._new[project_id] = Bucket(NEW_TASKS.burst, now=now)
        if bucket.take(1, rate=NEW_TASKS, holders=1, now=now):
            task, is_new = await self._store.open(principal, named)
            if not is_new:
                bucket.put_back(1)
            return task
        found = await self._store.find(principal, named)
        if found is None:
            raise Rejected(
                RejectReason.TASK_UNAVAILABLE,
                f"This project makes more than {NEW_TASKS.per_minute} new tasks a minute. Use those it has.",
                status=429,
                retry_after_s=1.0,
                scope=f"project {project_id}",
            )
        return found

    def _remember(self, place: tuple[ProjectId, str], task: Task) -> None:
        if len(self._known) >= MOST_REMEMBERED:
            self._known.clear()
            self._names.clear()
        self._known[place] = self._clock.monotonic() + FRESH_S, task
        self._names[task.task_id] = place


def _check(task: Task, named: Named, *, currency: str) -> None:
    if task.is_closed:
        raise Rejected(
            RejectReason.TASK_CLOSED,
            "The task is closed and takes no more requests.",
            status=409,
            should_retry=False,
            scope=f"task {task.task_id}",
        )
    if named.budget is not None and named.budget not in (task.budget, task.declared):
        has = "none" if task.budget is None else f"{format_picos(task.budget)} {currency}"
        raise Rejected(
            RejectReason.TASK_INVALID,
            f"The task has another budget: {has}. Its first request, or the API, sets it.",
            status=409,
            limit=None if task.budget is None else format_picos(task.budget),
            observed=format_picos(named.budget),
            should_retry=False,
            scope=f"task {task.task_id}",
            unit=currency,
        )


def _name(value: bytes) -> str:
    try:
        name = value.decode("utf-8").strip()
    except UnicodeDecodeError:
        name = ""
    if not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise _invalid(f"`X-Steelyard-Task` has 1 to {MAX_NAME} printable characters.")
    return name


def _budget(value: bytes) -> int:
    try:
        picos = parse_picos(value.decode("ascii").strip())
    except ValueError:
        picos = None
    if picos is None or not 0 <= picos <= MAX_BUDGET_PICOS:
        raise _invalid(
            "`X-Steelyard-Task-Budget` is a decimal amount such as 2.50, in the tenant's currency."
        )
    return picos


def _invalid(message: str) -> Rejected:
    return Rejected(RejectReason.TASK_INVALID, message, status=400)
