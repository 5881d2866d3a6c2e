"""What an alert says, to programs and to people, and how a webhook's message is signed. Pure.

Signatures are those of Standard Webhooks 1.0 (https://www.standardwebhooks.com): HMAC-SHA256 over
`id.timestamp.body`, base64, behind `v1,`; a secret is `whsec_` and the base64 of its bytes.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from datetime import UTC, datetime
from typing import Any

import msgspec

from app.core.money import format_picos
from billing.alerts.model import Alert, Attempt, MarkKind

SECRET_BYTES = 32
_SECRET_PREFIX = "whsec_"  # noqa: S105 - what a secret begins with
_WINDOWS = {"day": "this day's ", "week": "this week's ", "month": "this month's ", "balance": ""}
_UNITS = {"input_tokens": "input tokens", "output_tokens": "output tokens"}
_encode = msgspec.json.Encoder().encode


def shown_secret(secret: bytes) -> str:
    """A secret as its owner gets it, once."""
    return _SECRET_PREFIX + base64.b64encode(secret).decode()


def body_of(attempt: Attempt) -> bytes:
    """The JSON of a webhook's message: the same at each attempt."""
    delivery = attempt.delivery
    if attempt.alert is None:
        data: dict[str, Any] = {"endpoint_id": delivery.endpoint_id}
        return _encode({"type": "alert.test", "timestamp": _moment(delivery.created_at), "data": data})
    return _encode(
        {"type": "alert.reached", "timestamp": _moment(attempt.alert.at), "data": facts_of(attempt.alert)}
    )


def headers_of(attempt: Attempt, body: bytes, *, now: datetime) -> dict[str, str]:
    """The headers of a webhook's message. Its id stays the same at each attempt, its time does not."""
    timestamp = str(int(now.timestamp()))
    assert attempt.secret is not None
    return {
        "content-type": "application/json",
        "user-agent": "Steelyard-Webhooks/1",
        "webhook-id": attempt.delivery.id,
        "webhook-timestamp": timestamp,
        "webhook-signature": sign(
            body, secret=attempt.secret, message_id=attempt.delivery.id, timestamp=timestamp
        ),
    }


def sign(body: bytes, *, secret: bytes, message_id: str, timestamp: str) -> str:
    """The signature of a message."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()


def facts_of(alert: Alert) -> dict[str, Any]:
    """An alert as programs get it: amounts are decimal strings, of money in units of its currency."""
    amounts = {
        "threshold": _threshold(alert),
        "limit": amount_text(alert, alert.limit_amount),
        "spent": amount_text(alert, alert.spent),
        "outstanding": amount_text(alert, alert.outstanding),
        "used": amount_text(alert, alert.used),
        "remaining": amount_text(alert, alert.limit_amount - alert.used),
    }
    return {
        "id": alert.id,
        "tenant_id": alert.tenant_id,
        "allowance_id": alert.allowance_id,
        "kind": alert.kind.value,
        **amounts,
        "unit": alert.what if alert.currency is None else "money",
        "currency": alert.currency,
        "scope_kind": alert.scope_kind,
        "scope_id": alert.scope_id,
        "scope_name": alert.scope_name,
        "model_id": alert.model_id,
        "window": alert.window_kind,
        "period_start": _moment(alert.period_start),
        "period_end": _moment(alert.period_end),
        "at": _moment(alert.at),
    }


def mail_of(attempt: Attempt) -> tuple[str, str]:
    """The subject and the text of an e-mail."""
    alert = attempt.alert
    if alert is None:
        text = "This is a test of an alert endpoint. Alerts of its tenant will come to this address."
        return "Steelyard: a test", f"{text}\n"
    whose = f"{alert.scope_kind} {alert.scope_name or alert.scope_id}"
    unit = alert.currency or _UNITS.get(alert.what, alert.what)
    thing = f"{_WINDOWS.get(alert.window_kind, '')}limit"
    rest = f"{amount_text(alert, alert.limit_amount - alert.used)} {unit}"
    subject = f"{_capital(whose)}: {alert.threshold} % of {thing} used"
    if alert.kind is MarkKind.REMAINING:
        subject = f"{_capital(whose)}: {rest} left"
    lent = amount_text(alert, alert.outstanding)
    period = f"Period:  {_moment(alert.period_start)} to {_moment(alert.period_end)}"
    lines = [
        f"Limit:   {amount_text(alert, alert.limit_amount)} {unit}",
        f"Used:    {amount_text(alert, alert.used)} {unit}, of which {lent} are lent to running gateways",
        f"Left:    {rest}",
        f"Scope:   {alert.scope_kind} {alert.scope_id}",
        *([f"Model:   {alert.model_id}"] if alert.model_id else []),
        *([period] if alert.period_end else []),
        f"At:      {_moment(alert.at)}",
        f"Alert:   {alert.id}",
    ]
    return " ".join(f"Steelyard: {subject}".split()), "\n".join(lines) + "\n"


def amount_text(alert: Alert, amount: int) -> str:
    """An amount of what the alert is about, exactly."""
    return format_picos(amount) if alert.what == "picos" else str(amount)


def _threshold(alert: Alert) -> str:
    if alert.kind is MarkKind.PERCENT:
        return str(alert.threshold)
    return amount_text(alert, alert.threshold)


def _moment(at: datetime | None) -> str | None:
    return None if at is None else at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
