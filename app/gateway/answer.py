"""Reads an engine's whole JSON answer: its usage, how it finished, and the name it must show. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from app.gateway.spoken import Said, said_in
from app.gateway.surgery import find_member
from billing.metering.convert import Report
from billing.metering.dialect import read_usage

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Largest answer that is not streamed; it is held in memory until it is settled."""
BROKEN_FINISHES = frozenset(("error", "abort"))
"""Finish reasons by which vLLM and SGLang say that they broke off by themselves."""


class _Finish(msgspec.Struct):
    finish_reason: Any = None


class _Answer(msgspec.Struct):
    choices: msgspec.Raw
    usage: msgspec.Raw = msgspec.Raw(b"null")
    error: msgspec.Raw = msgspec.Raw(b"null")


_decode = msgspec.json.Decoder(_Answer).decode
_finishes = msgspec.json.Decoder(list[_Finish]).decode


class Answer(msgspec.Struct, frozen=True):
    """What a JSON answer says of itself.   report None: it reported no usage.

    is_broken: the engine says in it that it failed.   choices: as they stand there.
    """

    report: Report | None
    finish_reason: str | None
    is_broken: bool
    choices: msgspec.Raw

    def said(self) -> tuple[Said, ...]:
        """What each choice said."""
        return said_in(self.choices)


def read_answer(body: bytes) -> Answer | None:
    """The facts of a JSON answer, or None if it isn't one. An odd usage does not cost the answer."""
    try:
        answer = _decode(body)
        finishes = _finishes(answer.choices)
    except (msgspec.MsgspecError, RecursionError):
        return None
    reasons = [one.finish_reason for one in finishes if isinstance(one.finish_reason, str)]
    return Answer(
        report=read_usage(answer.usage),
        finish_reason=reasons[-1] if reasons else None,
        is_broken=bytes(answer.error) != b"null" or not BROKEN_FINISHES.isdisjoint(reasons),
        choices=answer.choices,
    )


def rename_members(served: str, asked: str) -> tuple[bytes, bytes] | None:
    """What to replace so that an answer shows the name asked for; None if the engine uses the same."""
    if served == asked:
        return None
    return b'"model":' + msgspec.json.encode(served), b'"model":' + msgspec.json.encode(asked)


def with_usage(body: bytes, usage: dict[str, Any] | None) -> bytes:
    """The answer with another usage in the place of its own; None: nobody knows it."""
    found = find_member(body, b'"usage"')
    if found is None:
        return body
    return body[: found.value] + msgspec.json.encode(usage) + body[found.end :]
