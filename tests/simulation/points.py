"""Every point at which a process of one small run can die, one after the other: not drawn, but counted.

The run is played once and each moment of each process is counted; then it is played once for each of them
with a death in exactly that moment. Up to its death a run is the counted one, so each death is reached.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from tests.simulation.arena import Arena
from tests.simulation.caps import TYPICAL_HOLD
from tests.simulation.client import Wish
from tests.simulation.outcome import Outcome, Sum
from tests.simulation.plan import MODEL, SECRETS, Death, Plan, Trouble
from tests.simulation.run import simulate
from tests.simulation.world import World

_SEED = 7
_BACK_S = 0.1
_CHAT = {"model": MODEL, "max_tokens": 12, "messages": [{"role": "user", "content": "weigh this"}]}
_STREAM = {**_CHAT, "stream": True, "stream_options": {"include_usage": True}}
_WHOLE = {"model": MODEL, "max_tokens": 8, "prompt": "weigh that"}
_WITH_POWER = (
    "write", "torn", "torn_first", "torn_between", "torn_last", "written", "full", "sync", "synced", "disk",
    "sent", "called",
)  # fmt: skip
"""Moments at which the power of the machine may fail as well: a death at any other loses no more."""


def _wish(at_s: float, body: dict[str, object], *, leaves_after: int | None = None) -> Wish:
    path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
    return Wish(at_s, 0, SECRETS[0], path, dict(body), leaves_after=leaves_after)


_SMALL = Plan(
    seed=_SEED,
    calm=True,
    gateways=1,
    engines=("vllm",),
    credits=(500 * TYPICAL_HOLD,),
    calls=(_wish(0.02, _STREAM, leaves_after=900), _wish(0.04, _WHOLE), _wish(0.06, _STREAM)),
    deaths=(),
    troubles=(),
    ends=("stop",),
    slow=0.0,
    span_s=0.2,
    delivers=True,
)
PLANS = {
    "small": _SMALL,
    "full": replace(_SMALL, calls=_SMALL.calls[1:], troubles=(Trouble(0.05, "disk_full", 0.3),)),
}
"""small: a stream that its client cuts, a whole answer, a stream to its end, one gateway, one settler.
full: the last two of them, while the disk takes nothing for some time."""


@dataclass(frozen=True, order=True)
class Point:
    """The `number`th moment of a kind in the life of a process.   power: its machine goes down with it."""

    plan: str
    who: str
    kind: str
    power: bool
    number: int

    @property
    def group(self) -> tuple[str, str, str, bool]:
        """What it has in common with others."""
        return self.plan, self.who, self.kind, self.power

    def __str__(self) -> str:
        return f"{self.plan}/{self.who}/{self.kind}/{self.number}{'/power' if self.power else ''}"

    @classmethod
    def parse(cls, words: str) -> Point:
        """What `str` made of one. Raises ValueError."""
        plan, who, kind, number, *power = words.split("/")
        if plan not in PLANS or power not in ([], ["power"]):
            raise ValueError(f"no point is called {words}")
        return cls(plan, who, kind, bool(power), int(number))


def count(database: Arena) -> tuple[list[Point], Sum]:
    """All points, and what the runs without a death come to."""
    points: list[Point] = []
    sum_ = Sum()
    for name, plan in PLANS.items():
        seen: list[World] = []
        outcome = simulate(plan.seed, database=database, plan=plan, on_end=seen.append)
        sum_.add(name, outcome.numbers(), outcome.findings)
        points += _points(name, seen[0].moments())
    return points, sum_


def play(point: Point, *, database: Arena, **more: object) -> Outcome:
    """The run with a death in that moment; it is a finding if nobody died in it."""
    plan = PLANS[point.plan]
    death = Death(point.who, point.kind, point.number, power=point.power, back_s=_BACK_S)
    outcome = simulate(plan.seed, database=database, plan=replace(plan, deaths=(death,)), **more)  # type: ignore[arg-type]
    if outcome.deaths != 1:
        outcome.found("other", f"{outcome.deaths} died at {point}")
    return outcome


def choose(points: Sequence[Point], *, every: int) -> list[Point]:
    """Each `every`th point of each group, its first one always."""
    chosen = (list(group)[::every] for _, group in groupby(sorted(points), key=lambda point: point.group))
    return [point for group in chosen for point in group]


def one_of_each(points: Sequence[Point]) -> list[Point]:
    """The middle point of each kind of moment of each process."""
    groups = groupby(sorted(points, key=_kind), key=_kind)
    return [each[len(each) // 2] for each in (list(group) for _, group in groups)]


def _kind(point: Point) -> tuple[str, str]:
    return point.who, point.kind


def kinds(points: Sequence[Point]) -> dict[str, int]:
    """How many points there are of each group, by its name."""
    return dict(
        Counter(f"{who} {kind}{' power' * power}" for _, who, kind, power in (p.group for p in points))
    )


def _points(plan: str, moments: Mapping[str, Mapping[str, int]]) -> Iterator[Point]:
    counted = [(who, kind, most) for who, each in moments.items() for kind, most in each.items()]
    for who, kind, most in counted:
        for power in (False, True) if kind in _WITH_POWER else (False,):
            yield from (Point(plan, who, kind, power, number) for number in range(1, most + 1))
