"""What a refusal by a limit says, for each kind of limit."""

from __future__ import annotations

import pytest

from app.core.errors import RejectReason
from app.core.ids import AllowanceId
from app.gateway.errors import error_body, error_headers, kept_facts
from app.gateway.refusals import Refusals
from app.gateway.terms import Drawn
from billing.quota.model import Denied, Rate

ALLOWANCE = AllowanceId("alw_1")
DAY_MS = 86_400_000
WALLET = Drawn(ALLOWANCE, "tenant", "ten_1", "picos")
TASK = Drawn(ALLOWANCE, "task", "tsk_1", "picos")
BUDGET = Drawn(ALLOWANCE, "project", "prj_1", "picos", "month", end_ms=DAY_MS)
TOKENS = Drawn(ALLOWANCE, "key", "key_1", "tokens", "day", end_ms=DAY_MS)
RUNNING = Drawn(ALLOWANCE, "tenant", "ten_1", "concurrent", "running")


def rate(burst: int) -> Drawn:
    return Drawn(ALLOWANCE, "key", "key_1", "tokens", "minute", rate=Rate(600, burst))


def refusal(drawn: Drawn, denied: Denied, *, needed: int = 10, status: int = 429):
    made = Refusals(money_status=status).lacking(
        denied, drawn, needed=needed, currency="EUR", now_ms=DAY_MS - 90_500
    )
    return made, dict(error_headers(made))


def denied(
    limit: int, available: int, retry_after_s: float | None = None, *, cut_off: bool = False
) -> Denied:
    return Denied(ALLOWANCE, limit, available, retry_after_s, cut_off)


@pytest.mark.parametrize(
    ("drawn", "reason", "status"),
    [
        (WALLET, RejectReason.BALANCE_TOO_LOW, 402),
        (TASK, RejectReason.BUDGET_EXHAUSTED, 402),
        (BUDGET, RejectReason.BUDGET_EXHAUSTED, 402),
        (TOKENS, RejectReason.BUDGET_EXHAUSTED, 429),
        (RUNNING, RejectReason.TOO_MANY_CONCURRENT, 429),
        (rate(600), RejectReason.TOKENS_PER_MINUTE, 429),
    ],
)
def test_the_setting_moves_money_alone(drawn: Drawn, reason: RejectReason, status: int) -> None:
    made, _ = refusal(drawn, denied(5, 1), status=402)
    assert (made.reason, made.status) == (reason, status)


def test_a_rate_says_how_long_it_takes_to_fill() -> None:
    made, headers = refusal(rate(600), denied(600, 4, 0.6))
    assert headers == {b"retry-after": b"1"}
    assert (made.limit, made.observed, made.retry_after_s) == ("600", "596", 0.6)
    assert "600 tokens per minute for key key_1 is reached: 4 are left" in made.public_message


def test_what_a_bucket_never_has_is_not_to_be_waited_for() -> None:
    made, headers = refusal(rate(8), denied(600, 8), needed=9)
    assert headers == {b"x-should-retry": b"false"}
    assert (made.limit, made.observed) == ("600", "0")
    assert "at most 8 tokens at once of the limit of 600 tokens per minute" in made.public_message


def test_a_budget_says_when_its_period_ends() -> None:
    made, headers = refusal(BUDGET, denied(5 * 10**12, 10**12), needed=2 * 10**12)
    assert headers == {b"retry-after": b"91", b"x-should-retry": b"false"}
    body = error_body(made, "req_1")["error"]  # type: ignore[arg-type]
    assert (body["limit"], body["observed"], body["available"], body["needed"]) == ("5", "4", "1", "2")
    assert (body["resets_at"], body["currency"], body["unit"]) == ("1970-01-02T00:00:00Z", "EUR", "EUR")
    assert (body["scope"], body["window"], body["allowance_id"]) == ("project prj_1", "month", "alw_1")
    assert "5 EUR a month for project prj_1 has 1 left" in body["message"]
    assert kept_facts(made) == {
        "scope": "project prj_1",
        "window": "month",
        "unit": "EUR",
        "allowance_id": "alw_1",
        "resets_at": "1970-01-02T00:00:00Z",
        "available": "1",
        "needed": "2",
        "currency": "EUR",
    }


def test_what_a_period_never_has_is_not_to_be_waited_for() -> None:
    made, headers = refusal(TOKENS, denied(9, 9), needed=10)
    assert headers == {b"x-should-retry": b"false"}
    assert made.facts["resets_at"] == "1970-01-02T00:00:00Z"


def test_money_is_never_waited_for_by_an_sdk() -> None:
    for drawn in (WALLET, TASK):
        _, headers = refusal(drawn, denied(5, 1, 1.0))
        assert headers[b"x-should-retry"] == b"false"


def test_running_requests_end_soon_but_none_is_none() -> None:
    assert refusal(RUNNING, denied(3, 0, 1.0))[1] == {b"retry-after": b"1"}
    assert refusal(RUNNING, denied(3, 0))[1] == {b"retry-after": b"1"}
    assert refusal(RUNNING, denied(0, 0))[1] == {b"x-should-retry": b"false"}


def test_an_authority_that_is_away_is_no_fault_of_the_caller() -> None:
    made, headers = refusal(WALLET, denied(5, 1, 1.0, cut_off=True))
    assert (made.reason, made.status) == (RejectReason.LIMITS_UNAVAILABLE, 503)
    assert headers == {b"retry-after": b"1"}
    assert "can't be checked" in made.public_message
