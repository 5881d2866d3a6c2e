"""What a seed stands for: who calls when, what engines and clients do, what dies and what else goes wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.simulation.caps import TYPICAL_HOLD, Cap, draw_caps, with_tasks
from tests.simulation.client import Wish

MODEL = "sim"
SECRETS = ("sk-sy-" + "a" * 43, "sk-sy-" + "b" * 43)
_MOMENTS = (
    ("step", 900), ("write", 60), ("torn", 60), ("written", 60), ("sync", 40), ("synced", 40),
    ("call", 150), ("called", 150),
)  # fmt: skip
"""Where a process may die, and up to the how-manieth such moment."""


LIMIT_EDITS = ("plan_limits", "override", "override", "plan_change", "task_budget")


@dataclass(frozen=True)
class Death:
    """A process ends as by `kill -9` at the `number`th moment of a kind.   power: its machine loses power."""

    who: str
    kind: str
    number: int
    power: bool
    back_s: float


@dataclass(frozen=True)
class Trouble:
    """Something that goes wrong, or changes, at a time."""

    at_s: float
    what: str
    lasts_s: float = 0.0
    amount: int = 0
    which: int = 0


@dataclass(frozen=True)
class Plan:
    """One run.   calm: nothing goes wrong at engines.   ends: how each gateway ends, by name of way.

    delivers: what somebody sent before its death arrives for certain.   caps: limits of every tenant.
    """

    seed: int
    calm: bool
    gateways: int
    engines: tuple[str, ...]
    credits: tuple[int, ...]
    calls: tuple[Wish, ...]
    deaths: tuple[Death, ...]
    troubles: tuple[Trouble, ...]
    ends: tuple[str, ...]
    slow: float
    span_s: float
    delivers: bool = False
    caps: tuple[Cap, ...] = ()


def plan_of(seed: int) -> Plan:
    """The plan of a seed; the same for ever, as long as this module stays."""
    rng = Random(f"plan:{seed}")
    calm = seed % 10 == 0
    gateways, tenants = rng.choice((1, 2, 2, 3)), rng.choice((1, 1, 2))
    span_s = rng.choice((1.5, 4.0, 12.0))
    caps = draw_caps(Random(f"caps:{seed}"))
    kinds = tuple(rng.choice(("vllm", "vllm", "openai")) for _ in range(rng.choice((1, 2, 3))))
    return Plan(
        seed=seed,
        calm=calm,
        gateways=gateways,
        engines=kinds,
        credits=tuple(int(TYPICAL_HOLD * rng.choice((0.8, 1.7, 3, 6, 500))) for _ in range(tenants)),
        calls=tuple(
            with_tasks(
                Random(f"tasks:{seed}"),
                list(_calls(rng, gateways=gateways, tenants=tenants, span_s=span_s)),
            )
        ),
        deaths=() if calm else tuple(_deaths(rng, gateways=gateways)),
        troubles=(
            *(() if calm else _troubles(rng, span_s=span_s, tenants=tenants)),
            *_business(Random(f"business:{seed}"), span_s=span_s, tenants=tenants),
            *_edits(Random(f"edits:{seed}"), caps=len(caps), span_s=span_s),
        ),
        ends=tuple(rng.choice(("stop", "kill")) for _ in range(gateways)),
        slow=0.0 if calm else rng.choice((0.0, 0.0, 0.02, 0.15)),
        span_s=span_s,
        caps=caps,
    )


def _calls(rng: Random, *, gateways: int, tenants: int, span_s: float) -> Iterator[Wish]:
    times = sorted(rng.random() * span_s for _ in range(rng.randint(4, 24)))
    leavers = rng.choice((0.0, 0.25, 0.5))
    for at_s in times:
        chat = rng.random() < 0.7
        body: dict[str, Any] = {"model": MODEL, "max_tokens": rng.choice((1, 4, 12, 40))}
        text = "weigh " * rng.randint(1, 40)
        body |= {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
        if rng.random() < 0.65:
            body["stream"] = True
            if rng.random() < 0.5:
                body["stream_options"] = {"include_usage": True}
        if rng.random() < 0.2:
            body["n"] = 2
        leaves = rng.random() < leavers
        by_bytes = rng.random() < 0.5
        yield Wish(
            at_s=at_s,
            gateway=rng.randrange(gateways),
            secret=SECRETS[rng.randrange(tenants)],
            path="/v1/chat/completions" if chat else "/v1/completions",
            body=body,
            leaves_s=rng.random() * rng.choice((0.01, 0.3, 3.0)) if leaves and not by_bytes else None,
            leaves_after=rng.randint(0, 3000) if leaves and by_bytes else None,
            read_s=rng.choice((0.0, 0.0, 0.0, 0.05)),
            body_s=rng.choice((0.0, 0.0, 0.0, 0.02)),
        )


def _business(rng: Random, *, span_s: float, tenants: int) -> Iterator[Trouble]:
    """What happens on any day: grants that start later and end soon, corrections of what was posted."""
    for _ in range(rng.choice((0, 1, 2, 3))):
        yield Trouble(
            at_s=rng.random() * span_s,
            what=rng.choice(("dated_grant", "dated_grant", "correction")),
            lasts_s=rng.choice((0.4, 1.5, 6.0)),
            amount=rng.choice((-1, 1)) * rng.choice((1, 3)) * TYPICAL_HOLD // 2,
            which=rng.randrange(12 * tenants),
        )


def _edits(rng: Random, *, caps: int, span_s: float) -> Iterator[Trouble]:
    """Limits are changed: the plan's, a tenant's own for a while, its plan, a task's budget."""
    for _ in range(rng.choice((0, 0, 1, 2, 3)) if caps else 0):
        yield Trouble(
            at_s=rng.random() * span_s,
            what=rng.choice(LIMIT_EDITS),
            lasts_s=rng.choice((0.4, 1.5, 6.0)),
            amount=rng.choice((0, 50, 200, 1000)),
            which=rng.randrange(12),
        )


def _deaths(rng: Random, *, gateways: int) -> Iterator[Death]:
    names = [*(f"gateway-{n}" for n in range(gateways)), "settler", "settler", "control", "worker"]
    power = rng.random() < 0.3
    for _ in range(rng.choice((0, 1, 1, 2, 3, 5))):
        kind, most = rng.choice(_MOMENTS)
        number = max(1, round(most ** rng.random()))
        yield Death(
            rng.choice(names), kind, number, power and rng.random() < 0.6, rng.choice((0.05, 0.4, 2.0))
        )


def _troubles(rng: Random, *, span_s: float, tenants: int) -> Iterator[Trouble]:
    for _ in range(rng.choice((0, 1, 2, 4))):
        yield Trouble(
            at_s=rng.random() * span_s,
            what=rng.choice(
                (
                    "database_away", "disk_full", "frozen", "clock_jump", "news_lost", "limit", "grant",
                    "price", "journal_copied", "position_back", "settler_away",
                )
            ),
            lasts_s=rng.choice((0.05, 0.6, 3.0)),
            amount=rng.choice((-1, 1)) * rng.choice((1, 3)) * TYPICAL_HOLD // 2,
            which=rng.randrange(6 * tenants),
        )  # fmt: skip
