"""Which limits a request runs under, and what it needs of each: prepared once for a key and a model. Pure.

Every request of a key for a model has the same limits until one changes, so all that does not depend on the
request itself is made then and kept: what is left for a request is its own amounts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from app.catalog.limits import Limit
from app.core.ids import AllowanceId, KeyId, ModelId, TenantId
from billing.journal.model import Held
from billing.metering.model import Usage
from billing.metering.uses import PER_REQUEST, needed_of
from billing.quota.model import Need, Rate

_MOST_KEPT = 50_000
"""Combinations of key and model of which terms are kept."""
_WORDS = {
    "tokens": "tokens",
    "input_tokens": "input tokens",
    "output_tokens": "output tokens",
    "requests": "requests",
    "concurrent": "requests at once",
    "max_output": "output tokens",
    "max_context": "tokens",
}


class Drawn(msgspec.Struct, frozen=True):
    """An allowance that a request draws on.   window: `balance` for the wallet and a task's budget."""

    allowance_id: AllowanceId
    scope_kind: str
    scope_id: str
    what: str
    window: str = "balance"
    model_id: ModelId | None = None
    rate: Rate | None = None
    end_ms: int | None = None
    same_need: Need | None = None
    same_held: Held | None = None

    @property
    def name(self) -> str:
        """What people call it: `tokens_per_minute`, `budget_per_month`, `balance`."""
        return limit_name(self.what, self.window, scope_kind=self.scope_kind)

    @property
    def counts_input(self) -> bool:
        """True if a lower bound of the input lowers what is needed of it."""
        return self.what in ("picos", "tokens", "input_tokens")


class ShownRate(msgspec.Struct, frozen=True):
    """A rate as `x-ratelimit-*` tells of it.   full: the most that it ever has.

    limit: the header that never changes.   remaining, reset: the names of those that do.
    """

    allowance_id: AllowanceId
    per_minute: int
    full: int
    limit: tuple[bytes, bytes]
    remaining: bytes
    reset: bytes


class Terms(msgspec.Struct, frozen=True):
    """The limits of requests of one key for one model.

    drawn: on which it draws, the wallet first.   max_output, max_context: the lowest ceiling, if any.
    rates: those of them that are consumed as a request goes.   at_once: those of these that it consumes
    when it is admitted.   requests, tokens: the rates that `x-ratelimit-*` tells of.
    """

    drawn: tuple[Drawn, ...]
    rates: tuple[Drawn, ...] = ()
    at_once: tuple[Drawn, ...] = ()
    max_output: Limit | None = None
    max_context: Limit | None = None
    requests: tuple[ShownRate, ...] = ()
    tokens: tuple[ShownRate, ...] = ()

    @property
    def shows_rates(self) -> bool:
        return bool(self.requests or self.tokens)


class TermsBook:
    """The terms of keys and models, kept while their limits are the same objects."""

    def __init__(self) -> None:
        self._kept: dict[tuple[KeyId, ModelId], tuple[tuple[Limit, ...], AllowanceId, Terms]] = {}

    def of(
        self,
        limits: tuple[Limit, ...],
        *,
        key_id: KeyId,
        model_id: ModelId,
        tenant_id: TenantId,
        wallet: AllowanceId,
    ) -> Terms:
        """The terms by these limits; the very same object as long as `limits` is."""
        kept = self._kept.get((key_id, model_id))
        if kept is not None and kept[0] is limits and kept[1] == wallet:
            return kept[2]
        terms = terms_of(limits, wallet=Drawn(wallet, "tenant", tenant_id, "picos"))
        if len(self._kept) >= _MOST_KEPT:
            self._kept.clear()
        self._kept[key_id, model_id] = limits, wallet, terms
        return terms


def terms_of(limits: Sequence[Limit], *, wallet: Drawn) -> Terms:
    """The terms by these limits and this wallet."""
    ceilings: dict[str, Limit] = {}
    drawn = [wallet]
    for limit in limits:
        if limit.window == "request":
            lowest = ceilings.get(limit.what)
            if lowest is None or limit.amount < lowest.amount:
                ceilings[limit.what] = limit
        else:
            drawn.append(_drawn(limit))
    rates = [limit for limit in limits if limit.window == "minute"]
    return Terms(
        drawn=tuple(drawn),
        rates=tuple(each for each in drawn if each.rate is not None),
        at_once=tuple(each for each in drawn if each.rate is not None and each.what == "requests"),
        max_output=ceilings.get("max_output"),
        max_context=ceilings.get("max_context"),
        requests=tuple(_shown(limit, b"requests") for limit in rates if limit.what == "requests"),
        tokens=tuple(_shown(limit, b"tokens") for limit in rates if limit.what != "requests"),
    )


def needs_of(drawn: Iterable[Drawn], bound: Usage, *, cost_picos: int) -> tuple[Need, ...]:
    """What a request needs of each.   bound: its most input and output.   cost_picos: of these."""
    return tuple(
        [
            each.same_need
            or Need(each.allowance_id, needed_of(each.what, bound, cost_picos=cost_picos), each.rate)
            for each in drawn
        ]
    )


def holds_of(drawn: Iterable[Drawn], needs: Iterable[Need]) -> tuple[Held, ...]:
    """What the journal tells of them: rates are not settled by it."""
    return tuple(
        [
            each.same_held or Held(need.allowance_id, need.amount, each.what)
            for each, need in zip(drawn, needs, strict=True)
            if each.rate is None
        ]
    )


def limit_name(what: str, window: str, *, scope_kind: str) -> str:
    """What people call a limit."""
    if window == "balance":
        return "task_budget" if scope_kind == "task" else "balance"
    if window == "running":
        return "concurrent_requests"
    if window == "request":
        return what
    return f"{'budget' if what == 'picos' else what}_per_{window}"


def unit_of(what: str, *, currency: str) -> str:
    """What its numbers count, in words."""
    return currency if what == "picos" else _WORDS[what]


def _shown(limit: Limit, kind: bytes) -> ShownRate:
    return ShownRate(
        limit.allowance_id,
        per_minute=limit.amount,
        full=limit.amount if limit.burst is None else limit.burst,
        limit=(b"x-ratelimit-limit-" + kind, b"%d" % limit.amount),
        remaining=b"x-ratelimit-remaining-" + kind,
        reset=b"x-ratelimit-reset-" + kind,
    )


def _drawn(limit: Limit) -> Drawn:
    same_need = same_held = None
    if limit.what in PER_REQUEST:
        amount, _ = PER_REQUEST[limit.what]
        same_need = Need(limit.allowance_id, amount, limit.rate)
        same_held = Held(limit.allowance_id, amount, limit.what)
    return Drawn(
        allowance_id=limit.allowance_id,
        scope_kind=limit.scope_kind,
        scope_id=limit.scope_id,
        what=limit.what,
        window=limit.window,
        model_id=limit.model_id,
        rate=limit.rate,
        end_ms=limit.end_ms,
        same_need=same_need,
        same_held=same_held,
    )
