"""Reads an engine's whole JSON answer: its usage, how it finished, and the name it must show. Pure."""

from __future__ import annotations

import msgspec

from billing.metering.convert import Report
from billing.metering.dialect import UsageWire

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Largest answer that is not streamed; it is held in memory until it is settled."""


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    function: _Function | None = None


class Spoken(msgspec.Struct):
    """All that a model can say in a message, or in a chunk of one."""

    content: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_ToolCall] | None = None
    function_call: _Function | None = None


class _Choice(msgspec.Struct):
    finish_reason: str | None = None
    text: str | None = None
    message: Spoken | None = None


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
        texts=() if report is not None else tuple(map(_text_of_choice, answer.choices)),
    )


def rename_members(served: str, asked: str) -> tuple[bytes, bytes] | None:
    """What to replace so that an answer shows the name asked for; None if the engine uses the same."""
    if served == asked:
        return None
    return b'"model":' + msgspec.json.encode(served), b'"model":' + msgspec.json.encode(asked)


def text_of(spoken: Spoken | None) -> str:
    """Everything that was said; calls of tools, with their names and arguments, were generated too."""
    if spoken is None:
        return ""
    parts = [spoken.reasoning, spoken.reasoning_content, spoken.content, spoken.refusal]
    for function in (spoken.function_call, *(call.function for call in spoken.tool_calls or ())):
        if function is not None:
            parts += (function.name, function.arguments)
    return "".join(part for part in parts if part)


def _text_of_choice(choice: _Choice) -> str:
    return (choice.text or "") + text_of(choice.message)
