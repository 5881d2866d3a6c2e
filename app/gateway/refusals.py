"""What a caller is told whose request a limit refuses: which one, whose, the numbers, when to come. Pure."""

from __future__ import annotations

from typing import Any

from app.catalog.limits import Limit
from app.core.clock import from_ms
from app.core.errors import Rejected, RejectReason
from app.core.money import format_picos
from app.gateway.terms import Drawn, unit_of
from billing.quota.model import Denied

_AT_ONCE_AGAIN_S = 1.0


class Refusals:
    """Makes refusals.   money_status: the HTTP status for want of money, 402 or 429."""

    def __init__(self, *, money_status: int) -> None:
        self._money_status = money_status

    def no_wallet(self) -> Rejected:
        return Rejected(
            RejectReason.BALANCE_TOO_LOW,
            "The tenant has no wallet.",
            status=self._money_status,
            limit="0",
            observed="0",
            should_retry=False,
        )

    def lacking(self, denied: Denied, drawn: Drawn, *, needed: int, currency: str, now_ms: int) -> Rejected:
        """The refusal of a request that an allowance did not cover."""
        reason, status = self._reason(drawn)
        if denied.cut_off:
            reason, status = RejectReason.LIMITS_UNAVAILABLE, 503
        show = format_picos if drawn.what == "picos" else str
        unit = unit_of(drawn.what, currency=currency)
        retry_after_s = _retry_after_s(denied, drawn, needed=needed, now_ms=now_ms)
        message = _CUT_OFF if denied.cut_off else _message(denied, drawn, needed=needed, unit=unit)
        retries = denied.cut_off or (_may_be_retried(drawn) and retry_after_s is not None)
        return Rejected(
            reason,
            message,
            status=status,
            limit=show(denied.limit),
            observed=show(_taken(denied, drawn)),
            retry_after_s=retry_after_s,
            **facts_of(drawn, unit=unit),
            available=show(denied.available),
            needed=show(needed),
            **({"currency": currency} if drawn.what == "picos" else {}),
            **({} if drawn.end_ms is None else {"resets_at": _moment(drawn.end_ms)}),
            **({} if retries else {"should_retry": False}),
        )

    def _reason(self, drawn: Drawn) -> tuple[RejectReason, int]:
        if drawn.window == "minute":
            is_requests = drawn.what == "requests"
            return RejectReason.REQUESTS_PER_MINUTE if is_requests else RejectReason.TOKENS_PER_MINUTE, 429
        if drawn.what == "concurrent":
            return RejectReason.TOO_MANY_CONCURRENT, 429
        status = self._money_status if drawn.what == "picos" else 429
        is_wallet = drawn.window == "balance" and drawn.scope_kind != "task"
        return RejectReason.BALANCE_TOO_LOW if is_wallet else RejectReason.BUDGET_EXHAUSTED, status


def above_output_ceiling(limit: Limit, asked: int) -> Rejected:
    """The refusal of a request that asks for more output than one request may."""
    return Rejected(
        RejectReason.OUTPUT_LIMIT,
        f"At most {limit.amount} output tokens may be asked for at once here ({_scope(limit)}); this asks for"
        f" {asked}.",
        status=400,
        limit=str(limit.amount),
        observed=str(asked),
        param="max_tokens",
        **facts_of(limit, unit="output tokens"),
    )


def above_context_ceiling(limit: Limit, needed: int, *, is_exact: bool) -> Rejected:
    """The refusal of a request whose input and output together are more than one request may have.

    is_exact False: nobody could count the input, so its upper bound counts.
    """
    about = "" if is_exact else "up to "
    return Rejected(
        RejectReason.CONTEXT_TOO_LONG,
        f"Input and output of a request have at most {limit.amount} tokens here ({_scope(limit)}); this one"
        f" has {about}{needed}.",
        status=400,
        limit=str(limit.amount),
        observed=str(needed),
        **facts_of(limit, unit="tokens"),
    )


def facts_of(limit: Drawn | Limit, *, unit: str) -> dict[str, Any]:
    """What tells one limit from all others."""
    return {
        "scope": _scope(limit),
        "window": limit.window,
        "unit": unit,
        "allowance_id": limit.allowance_id,
        **({} if limit.model_id is None else {"model_id": limit.model_id}),
    }


_CUT_OFF = "The limits can't be checked at the moment, and this gateway holds too little of one of them."


def _scope(limit: Drawn | Limit) -> str:
    return f"{limit.scope_kind} {limit.scope_id}".rstrip()


def _message(denied: Denied, drawn: Drawn, *, needed: int, unit: str) -> str:
    show = format_picos if drawn.what == "picos" else str
    has, most, scope = show(max(denied.available, 0)), show(denied.limit), _scope(drawn)
    of_model = "" if drawn.model_id is None else " for this model"
    if drawn.window == "balance" and drawn.scope_kind != "task":
        return "The balance of the wallet does not cover the most that this request can cost."
    if drawn.window == "balance":
        return (
            f"The task's budget of {most} {unit} has {has} left, and this request can cost up to"
            f" {show(needed)} {unit}."
        )
    if drawn.window == "running":
        return f"As many requests run as may at once: {most} for {scope}{of_model}."
    if drawn.rate is not None and needed > drawn.rate.burst:
        return (
            f"A request can have at most {drawn.rate.burst} {unit} at once of the limit of {most} {unit} per"
            f" minute for {scope}{of_model}; this one needs up to {needed}."
        )
    if drawn.window == "minute":
        return (
            f"The limit of {most} {unit} per minute for {scope}{of_model} is reached: {has} are left for now,"
            f" this request needs up to {show(needed)}."
        )
    return (
        f"The budget of {most} {unit} a {drawn.window} for {scope}{of_model} has {has} left, and this request"
        f" needs up to {show(needed)}."
    )


def _taken(denied: Denied, drawn: Drawn) -> int:
    """What is taken of a limit by now; of a rate, of what its bucket can have."""
    most = denied.limit if drawn.rate is None else drawn.rate.burst
    return max(most - denied.available, 0) if drawn.rate is not None else most - denied.available


def _may_be_retried(drawn: Drawn) -> bool:
    """True of what comes back by itself soon: rates and running requests. Money does not."""
    return drawn.window in ("minute", "running")


def _retry_after_s(denied: Denied, drawn: Drawn, *, needed: int, now_ms: int) -> float | None:
    """Seconds until it may be covered: told by the authority, else the end of its period; None: never."""
    if denied.retry_after_s is not None:
        return denied.retry_after_s
    if drawn.what == "concurrent" and denied.limit > 0:
        return _AT_ONCE_AGAIN_S
    if drawn.end_ms is None or needed > denied.limit:
        return None
    return max(drawn.end_ms - now_ms, 0) / 1000


def _moment(at_ms: int) -> str:
    return from_ms(at_ms).isoformat().replace("+00:00", "Z")
