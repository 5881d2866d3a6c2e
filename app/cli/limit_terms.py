"""Limits as people write them: `tokens/minute=40000`, `key:money/month=25,model=qwen3-8b`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from app.cli.errors import usage_error
from app.core.money import parse_picos

NONE = "none"
FORM = "WHAT/WINDOW=AMOUNT[,burst=N][,model=NAME]"
TERM_HELP = (
    f"{FORM}: tokens, input_tokens, output_tokens or requests per minute, day, week or month; money per day,"
    " week or month; concurrent=N; max_output=N; max_context=N."
)
_ALONE = {"concurrent": "running", "max_output": "request", "max_context": "request"}
_PARTS = re.compile(r"(?:(?P<level>tenant|project|key):)?(?P<what>\w+)(?:/(?P<window>\w+))?")
_EXAMPLE = "tokens/minute=40000"


def parse_limit(text: str, *, with_level: bool, with_amount: bool = True) -> dict[str, Any]:
    """The fields of a limit for the control API. An amount `none` is null: no limit.

    with_level: it begins with `tenant:`, `project:` or `key:`. Raises a usage error that shows the form.
    """
    form = f"{'LEVEL:' if with_level else ''}{FORM if with_amount else 'WHAT/WINDOW[,model=NAME]'}"
    named, *rest = text.split(",")
    subject, _, amount = named.partition("=")
    match = _PARTS.fullmatch(subject)
    if match is None or bool(match["level"]) is not with_level or bool(amount) is not with_amount:
        raise _wrong(text, form, with_level=with_level)
    what = match["what"]
    window = match["window"] or _ALONE.get(what)
    if window is None:
        raise _wrong(text, form, with_level=with_level)
    fields: dict[str, Any] = {"what": "picos" if what == "money" else what, "window": window}
    if with_level:
        fields["level"] = match["level"]
    if with_amount:
        fields["amount"] = None if amount == NONE else _amount(amount, text, form=form)
    for each in rest:
        name, _, value = each.partition("=")
        if name not in ("burst", "model") or not value:
            raise _wrong(text, form, with_level=with_level)
        fields[name] = value if name == "model" else _amount(value, text, form=form)
    return fields


def write_limit(row: Mapping[str, Any]) -> str:
    """A limit of the API as it is written here, without level and amount: `tokens/minute,model=qwen3-8b`."""
    what, window = ("money" if row["what"] == "picos" else str(row["what"])), str(row["window"])
    named = what if _ALONE.get(what) == window else f"{what}/{window}"
    return f"{named},model={row['model']}" if row.get("model") else named


def zone_of(name: str) -> ZoneInfo:
    """The zone of a tenant. Raises a usage error if this machine doesn't know it."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise usage_error(f"this machine does not know the time zone {name}") from error


def instant(text: str | None, zone: ZoneInfo) -> str | None:
    """A day or an instant as ISO 8601; a day begins at midnight in the zone. Raises a usage error."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise usage_error(
            f"not a day or an instant: {text}", remedy="2026-12-31, or 2026-12-31T18:00"
        ) from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=zone)).isoformat()


def local(moment: str | None, zone: ZoneInfo) -> str | None:
    """A moment of the API as the zone's clock shows it, to the minute."""
    if moment is None:
        return None
    return datetime.fromisoformat(moment).astimezone(zone).strftime("%Y-%m-%d %H:%M")


def _amount(amount: str, text: str, *, form: str) -> str:
    try:
        parse_picos(amount)
    except ValueError as error:
        raise usage_error(f"not an amount: {amount} in {text}", remedy=form) from error
    return amount


def _wrong(text: str, form: str, *, with_level: bool) -> Exception:
    example = f"{'key:' if with_level else ''}{_EXAMPLE}"
    return usage_error(f"not a limit: {text}", remedy=f"{form}, such as {example}")
