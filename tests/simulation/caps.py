"""Limits of a run besides wallets: budgets, counts, rates, concurrency, tasks, and how they are changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from app.core.money import format_picos
from billing.quota.terms import PlanLimit, Scope, Subject, What, Window
from tests.simulation.client import Wish

TYPICAL_HOLD = 480_000_000
"""About what a request of a plan holds, in picos."""
_TOKENS, _OUTPUT = 500, 60
"""About what it holds in tokens, and of them in output."""
_MENU: tuple[tuple[Scope, What, Window, tuple[float, ...]], ...] = (
    ("tenant", "picos", "month", (2, 5, 12, 100)),
    ("project", "picos", "day", (3, 8, 100)),
    ("tenant", "tokens", "day", (3, 8, 40)),
    ("key", "input_tokens", "month", (3, 12)),
    ("project", "output_tokens", "day", (3, 12)),
    ("key", "requests", "day", (3, 8, 50)),
    ("tenant", "requests", "minute", (2, 4, 9)),
    ("key", "tokens", "minute", (2, 4, 9)),
    ("project", "output_tokens", "minute", (2, 6)),
    ("tenant", "concurrent", "running", (1, 2, 4)),
    ("key", "concurrent", "running", (1, 3)),
    ("tenant", "max_output", "request", (30,)),
)
_UNITS = {"picos": TYPICAL_HOLD, "tokens": _TOKENS, "input_tokens": _TOKENS, "output_tokens": _OUTPUT}
_FILLS = (6, 40, 120)
"""How often a minute fills a rate's bucket."""
_TASKS = ("first", "second")


@dataclass(frozen=True)
class Cap:
    """One limit of a tenant, its project or its key.   burst: of a rate.   of_model: only for the model."""

    scope: Scope
    what: What
    window: Window
    amount: int
    burst: int | None = None
    of_model: bool = False

    @property
    def is_rate(self) -> bool:
        return self.window == "minute"

    def scaled(self, share: float) -> Cap:
        """The same limit of another amount."""
        burst = None if self.burst is None else max(round(self.burst * share), 1)
        return replace(self, amount=max(round(self.amount * share), 1), burst=burst)

    def limit(self, model_id: str) -> PlanLimit:
        """As a plan has it."""
        subject = Subject(self.scope, self.what, self.window, model_id if self.of_model else None)  # type: ignore[arg-type]
        return PlanLimit(subject=subject, amount=self.amount, burst=self.burst)


def draw_caps(rng: Random) -> tuple[Cap, ...]:
    """None at all, or some."""
    chosen = rng.sample(_MENU, rng.choice((0, 1, 2, 3, 5)))
    return tuple(_cap(rng, *each) for each in chosen)


def with_tasks(rng: Random, calls: Sequence[Wish]) -> Iterator[Wish]:
    """The calls; in some runs a part of them belongs to tasks, with a budget or without."""
    share = rng.choice((0.0, 0.0, 0.4))
    budgets = [rng.choice((None, 1.5, 4.0)) for _ in _TASKS]
    for wish in calls:
        number = rng.randrange(len(_TASKS))
        if rng.random() >= share:
            yield wish
            continue
        budget = budgets[number]
        picos = None if budget is None else format_picos(round(TYPICAL_HOLD * budget))
        yield replace(wish, task=_TASKS[number], task_budget=picos)


def _cap(rng: Random, scope: Scope, what: What, window: Window, times: Sequence[float]) -> Cap:
    amount = round(_UNITS.get(what, 1) * rng.choice(times))
    of_model = rng.random() < 0.3
    if window != "minute":
        return Cap(scope, what, window, amount, of_model=of_model)
    return Cap(scope, what, window, amount * rng.choice(_FILLS), burst=amount, of_model=of_model)
