"""What is sent: signed so that the documented lines verify it, exact, and the same at each attempt."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.core.ids import AlertDeliveryId, AlertEndpointId, AlertId, AllowanceId, TenantId
from billing.alerts.message import body_of, facts_of, headers_of, mail_of, shown_secret, sign
from billing.alerts.model import Alert, Attempt, Delivery, MarkKind

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "alerts.md"
AT = datetime(2026, 12, 1, 10, tzinfo=UTC)
SECRET = bytes(range(32))
TENANT = TenantId("ten_1")
ALERT = Alert(
    id=AlertId("alt_1"),
    tenant_id=TENANT,
    allowance_id=AllowanceId("alw_1"),
    kind=MarkKind.PERCENT,
    threshold=80,
    scope_kind="project",
    scope_id="prj_1",
    scope_name="search",
    model_id=None,
    what="picos",
    window_kind="month",
    period_start=AT,
    period_end=AT,
    currency="EUR",
    limit_amount=25 * 10**12,
    spent=19_500_000_000_000,
    outstanding=600_000_000_001,
    at=AT,
)
DELIVERY = Delivery(
    id=AlertDeliveryId("ald_1"),
    tenant_id=TENANT,
    endpoint_id=AlertEndpointId("aep_1"),
    alert_id=ALERT.id,
    status="pending",
    attempts=1,
    next_at=AT,
    last_status=None,
    last_error=None,
    created_at=AT,
    ended_at=None,
)
ATTEMPT = Attempt(DELIVERY, "webhook", "https://hooks.example/", ALERT, SECRET)


@pytest.fixture(scope="module")
def verify() -> Callable[..., None]:
    """The documented lines, as they stand in the document."""
    code = re.search(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    assert code is not None
    names: dict[str, Any] = {}
    exec(code[1], names)
    assert callable(names["verify"])
    return names["verify"]  # type: ignore[no-any-return]


def test_the_documented_lines_verify_what_is_sent_and_nothing_else(verify: Callable[..., None]) -> None:
    body = body_of(ATTEMPT)
    headers, secret, now = headers_of(ATTEMPT, body, now=AT), shown_secret(SECRET), AT.timestamp()
    verify(secret, headers, body, now)
    spoiled: list[tuple[str, dict[str, str], bytes, float]] = [
        (shown_secret(bytes(32)), headers, body, now),
        (secret, headers, body.replace(b"80", b"81"), now),
        (secret, headers | {"webhook-id": "ald_2"}, body, now),
        (secret, headers | {"webhook-timestamp": str(int(now) + 1)}, body, now),
        (secret, headers, body, now + 301),
    ]
    for arguments in spoiled:
        with pytest.raises(ValueError, match=r"replayed|changed"):
            verify(*arguments)


def test_a_signature_is_that_of_the_published_example() -> None:
    """The test vector of the specification's reference libraries."""
    secret = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    signature = sign(
        b'{"test": 2432232314}',
        secret=secret,
        message_id="msg_p5jXN8AQM9LWM0D4loKWxJek",
        timestamp="1614265330",
    )
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_a_message_is_the_same_at_each_attempt_but_for_its_time() -> None:
    later = msgspec.structs.replace(
        ATTEMPT, delivery=msgspec.structs.replace(DELIVERY, attempts=7, next_at=datetime.now(UTC))
    )
    assert body_of(later) == body_of(ATTEMPT)
    first, second = (headers_of(each, b"", now=AT) for each in (ATTEMPT, later))
    assert first["webhook-id"] == second["webhook-id"] == "ald_1"


def test_amounts_are_exact_strings_in_the_unit_of_the_limit() -> None:
    message = json.loads(body_of(ATTEMPT))
    assert (message["type"], message["timestamp"]) == ("alert.reached", "2026-12-01T10:00:00Z")
    data = message["data"]
    assert data["outstanding"] == "0.600000000001"
    assert data["used"] == "20.100000000001"
    assert data["remaining"] == "4.899999999999"
    assert (data["threshold"], data["unit"], data["currency"]) == ("80", "money", "EUR")
    tokens = msgspec.structs.replace(ALERT, what="input_tokens", currency=None)
    assert facts_of(tokens)["used"] == "20100000000001"
    assert facts_of(tokens)["unit"] == "input_tokens"


def test_the_documented_fields_are_those_that_are_sent() -> None:
    example = re.search(r"```json\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    assert example is not None
    shown, sent = json.loads(example[1]), json.loads(body_of(ATTEMPT))
    assert (shown.keys(), shown["data"].keys()) == (sent.keys(), sent["data"].keys())


def test_a_mail_says_what_and_whose_in_its_subject_and_the_numbers_in_its_text() -> None:
    subject, text = mail_of(ATTEMPT)
    assert subject == "Steelyard: Project search: 80 % of this month's limit used"
    assert "Used:    20.100000000001 EUR, of which 0.600000000001 are lent" in text
    assert "Left:    4.899999999999 EUR" in text
    rest = msgspec.structs.replace(
        ALERT, kind=MarkKind.REMAINING, threshold=5 * 10**12, scope_kind="tenant", scope_name="Acme"
    )
    assert mail_of(msgspec.structs.replace(ATTEMPT, alert=rest))[0] == (
        "Steelyard: Tenant Acme: 4.899999999999 EUR left"
    )


def test_a_name_never_adds_a_header_to_a_mail() -> None:
    alert = msgspec.structs.replace(ALERT, scope_name="a\r\nBcc: b@example.com")
    subject, _ = mail_of(msgspec.structs.replace(ATTEMPT, alert=alert))
    assert "\n" not in subject
    assert "\r" not in subject


def test_a_test_names_its_endpoint_only() -> None:
    test = msgspec.structs.replace(ATTEMPT, alert=None)
    assert json.loads(body_of(test))["data"] == {"endpoint_id": "aep_1"}
    assert "test" in mail_of(test)[0]
