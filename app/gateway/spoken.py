"""What a model said: the text of an answer, or of a stream's events, for a tokenizer to count. Pure.

Whatever was generated counts, and once: content, refusals, reasoning (which some engines write under two
names), calls of tools with their arguments. `logprobs` tell of the same tokens a second time: they are
counted beside the text, and the larger number holds.
"""

from __future__ import annotations

from typing import Any

import msgspec

MAX_EVENT_BYTES = 64 * 1024
"""Most of a stream's events that are kept as they came; more of them are reduced to their text."""
MAX_SAID_BYTES = 1024 * 1024
"""Most text of an answer that is kept to be counted."""


class Said(msgspec.Struct, frozen=True):
    """What one choice said.   tokens: so many at least, by the `logprobs` that came with it."""

    text: str
    tokens: int = 0


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    function: _Function | None = None


class _Spoken(msgspec.Struct):
    """All that a model can say in a message, or in a chunk of one."""

    content: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_ToolCall] | None = None
    function_call: _Function | None = None


class _Logprobs(msgspec.Struct):
    content: list[Any] | None = None
    refusal: list[Any] | None = None
    tokens: list[Any] | None = None


class _Choice(msgspec.Struct):
    """A choice of a whole answer (`message`), of a chunk (`delta`), or of a completion (`text`)."""

    index: int = 0
    text: str | None = None
    message: _Spoken | None = None
    delta: _Spoken | None = None
    logprobs: _Logprobs | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []


_choices = msgspec.json.Decoder(list[_Choice]).decode
_chunk = msgspec.json.Decoder(_Chunk).decode


def said_in(choices: msgspec.Raw) -> tuple[Said, ...]:
    """What each choice of a whole answer said, in their order; nothing if it can't be read."""
    try:
        found = _choices(choices)
    except (msgspec.MsgspecError, RecursionError):
        return ()
    return tuple(Said(_text(choice), _tokens(choice)) for choice in found)


class Transcript:
    """What a stream has said, while its engine reports no usage.   too_long: more than is kept."""

    __slots__ = ("_event_bytes", "_events", "_said_bytes", "_texts", "_tokens", "too_long")

    def __init__(self) -> None:
        self._events: list[bytes] = []
        self._event_bytes = 0
        self._texts: dict[int, list[str]] = {}
        self._tokens: dict[int, int] = {}
        self._said_bytes = 0
        self.too_long = False

    def add(self, event: bytes) -> None:
        """Take a whole event. It is only read once there are many."""
        if self.too_long:
            return
        self._events.append(event)
        self._event_bytes += len(event)
        if self._event_bytes > MAX_EVENT_BYTES:
            self._reduce()

    def said(self) -> tuple[Said, ...]:
        """What each choice said, by index. What can't be read adds nothing."""
        self._reduce()
        return tuple(Said("".join(self._texts[at]), self._tokens[at]) for at in sorted(self._texts))

    def _reduce(self) -> None:
        for event in self._events:
            self._read(event)
        self._events.clear()
        self._event_bytes = 0
        if self._said_bytes > MAX_SAID_BYTES:
            self.too_long = True
            self._texts.clear()

    def _read(self, event: bytes) -> None:
        try:
            chunk = _chunk(event.partition(b"data:")[2])
        except (msgspec.MsgspecError, RecursionError):
            return
        for choice in chunk.choices:
            text = _text(choice)
            self._said_bytes += len(text)
            self._texts.setdefault(choice.index, []).append(text)
            self._tokens[choice.index] = self._tokens.get(choice.index, 0) + _tokens(choice)


def _text(choice: _Choice) -> str:
    spoken = choice.delta or choice.message
    if spoken is None:
        return choice.text or ""
    parts = [choice.text, spoken.reasoning, spoken.content, spoken.refusal]
    if spoken.reasoning_content != spoken.reasoning:
        parts.append(spoken.reasoning_content)
    for function in (spoken.function_call, *(call.function for call in spoken.tool_calls or ())):
        if function is not None:
            parts += (function.name, function.arguments)
    return "".join(part for part in parts if part)


def _tokens(choice: _Choice) -> int:
    """How many tokens its `logprobs` list, in the form of chats or of completions."""
    told = choice.logprobs
    if told is None:
        return 0
    return sum(len(listed) for listed in (told.content, told.refusal, told.tokens) if listed)
