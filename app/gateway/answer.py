"""Reads an engine's whole JSON answer: its usage, how it finished, and the name it must show. Pure."""

from __future__ import annotations

import msgspec

from billing.metering.convert import Report
from billing.metering.dialect import UsageWire

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Largest answer that is not streamed; it is held in memory until it is settled."""


class _Message(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    finish_reason: str | None = None
    text: str | None = None
    message: _Message | None = None


class _Answer(msgspec.Struct):
    usage: UsageWire | None = None
    choices: list[_Choice] = []


_decode = msgspec.json.Decoder(_Answer).decode


class Answer(msgspec.Struct, frozen=True):
    """What a JSON answer says of itself. report None: it reported no usage."""

    report: Report | None
    finish_reason: str | None
    texts: tuple[str, ...]


def read_answer(body: bytes, *, usage_holds: bool) -> Answer | None:
    """The facts of a JSON answer, or None if it isn't one.

    usage_holds False: what it reports is not the usage of all its choices, so it counts as not reported.
    """
    try:
        answer = _decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return None
    report = answer.usage.report() if answer.usage is not None and usage_holds else None
    reasons = [choice.finish_reason for choice in answer.choices if choice.finish_reason]
    return Answer(
        report=report,
        finish_reason=reasons[-1] if reasons else None,
        texts=() if report is not None else tuple(map(_text, answer.choices)),
    )


def rename_members(served: str, asked: str) -> tuple[bytes, bytes] | None:
    """What to replace so that an answer shows the name asked for; None if the engine uses the same."""
    if served == asked:
        return None
    return b'"model":' + msgspec.json.encode(served), b'"model":' + msgspec.json.encode(asked)


def _text(choice: _Choice) -> str:
    message = choice.message or _Message()
    parts = (choice.text, message.reasoning, message.reasoning_content, message.content)
    return "".join(part for part in parts if part)
