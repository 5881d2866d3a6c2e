"""Counts a tenant's own texts with the model's tokenizer, and compares with what was metered.

A side that can't be counted exactly is said to be so, with the rule that makes it so; a number that
differs is a finding. Input: the chat template around the messages, or the prompts. Output: the answers,
and one token more for each that came to its own end: engines count the token that ends it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from app.cli.errors import usage_error
from app.cli.model_tokenizer import CannotRender, ModelTokenizer
from billing.chain.wire import Event
from billing.metering.model import Outcome, UsageSource

MOST_KEPT = 1000
"""Requests that can't be counted exactly, kept in words; more are only counted."""
_ENDED = frozenset({"stop", "tool_calls"})
_WITH_TOOLS = "an engine may write tools into the prompt in its own way"


class Answer(msgspec.Struct, frozen=True):
    """One answer.   finish_reason: needed where there are several; of one, the event tells it."""

    text: str = ""
    finish_reason: str | None = None
    tool_calls: Any = None
    reasoning: str | None = None


class Texts(msgspec.Struct, frozen=True):
    """What a tenant kept of a request. `messages` or `prompt` as they were sent; `answer`, or `answers`."""

    request_id: str
    messages: list[dict[str, Any]] | None = None
    prompt: str | list[str | int | list[int]] | None = None
    answer: str | None = None
    answers: list[str | Answer] | None = None
    tools: list[Any] | None = None
    stop: Any = None
    response_format: Any = None


class Side(NamedTuple):
    """Input or output of a request.   counted: None if it can't be.   rule: why it is not exact."""

    metered: int
    counted: int | None = None
    rule: str | None = None

    @property
    def differs(self) -> bool:
        return self.rule is None and self.counted != self.metered


class Recounted(NamedTuple):
    """A request, counted again."""

    request_id: str
    input: Side
    output: Side


_decode = msgspec.json.Decoder(Texts).decode
_decode_id = msgspec.json.Decoder(msgspec.defstruct("Named", [("request_id", str)])).decode


class TextsFile:
    """Finds the texts of a request in a file, of which only the places stay in memory."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._places: dict[str, int] = {}
        place = 0
        for number, raw in enumerate(file, start=1):
            if raw.strip():
                self._places[self._id_of(raw, number)] = place
            place += len(raw)

    def __len__(self) -> int:
        return len(self._places)

    def find(self, request_id: str) -> Texts | None:
        """The texts of a request, each once. Raises CommandFailed if they can't be read."""
        place = self._places.pop(request_id, None)
        if place is None:
            return None
        self._file.seek(place)
        try:
            return _decode(self._file.readline())
        except msgspec.MsgspecError as error:
            raise usage_error(f"{self._path}: {request_id}: {error}") from error

    def left(self) -> list[str]:
        """Requests of which no event was asked for."""
        return list(self._places)

    def _id_of(self, raw: bytes, number: int) -> str:
        try:
            request_id = str(_decode_id(raw).request_id)  # type: ignore[attr-defined]
        except msgspec.MsgspecError as error:
            raise usage_error(f"{self._path}, line {number}: {error}") from error
        if request_id in self._places:
            raise usage_error(f"{self._path}, line {number}: {request_id} is there twice")
        return request_id


@contextmanager
def open_texts(path: Path) -> Iterator[TextsFile]:
    """The texts of a file, for the length of a block. Raises CommandFailed if it can't be read."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise usage_error(f"{path} can't be read: {error.strerror}") from error
    with file:
        yield TextsFile(path, file)


@dataclass
class Recount:
    """What counting again came to.   equal, different, inexact: sides, of which a request has two.

    kept: requests with a side that can't be counted exactly.
    """

    tokenizer: ModelTokenizer
    texts: TextsFile
    requests: int = 0
    equal: int = 0
    different: int = 0
    inexact: int = 0
    kept: list[Recounted] = field(default_factory=list)

    def take(self, event: Event) -> Recounted | None:
        """Count an event's texts, if there are any."""
        texts = self.texts.find(event.request_id)
        if texts is None:
            return None
        counted = recount(event, texts, tokenizer=self.tokenizer)
        self.requests += 1
        sides = (counted.input, counted.output)
        self.equal += sum(side.rule is None and not side.differs for side in sides)
        inexact = sum(side.rule is not None for side in sides)
        self.different += sum(side.differs for side in sides)
        self.inexact += inexact
        if inexact and len(self.kept) < MOST_KEPT:
            self.kept.append(counted)
        return counted


def recount(event: Event, texts: Texts, *, tokenizer: ModelTokenizer) -> Recounted:
    """Compare one event with its texts. Never raises for what a text is."""
    usage = event.usage
    metered_input = usage.input + usage.input_cached + usage.input_cache_write
    rule = _rule_of(event)
    if rule is not None:
        return Recounted(event.request_id, Side(metered_input, rule=rule), Side(usage.output, rule=rule))
    return Recounted(
        event.request_id,
        _input(metered_input, event, texts=texts, tokenizer=tokenizer),
        _output(event, texts, tokenizer=tokenizer),
    )


def _rule_of(event: Event) -> str | None:
    """Why nothing of an event can be counted again exactly, or None."""
    if event.usage_source == UsageSource.UNKNOWN:
        return "nobody counted it, and nothing is billed"
    if event.usage_source == UsageSource.TOKENIZER:
        return "it was estimated by a tokenizer: " + (", ".join(event.flags) or "no flags")
    if event.outcome != Outcome.COMPLETED:
        return f"it ended as {event.outcome}: what the engine made is not what arrived"
    return None


def _input(metered: int, event: Event, *, texts: Texts, tokenizer: ModelTokenizer) -> Side:
    if texts.messages is None:
        return _of_prompts(metered, texts.prompt, tokenizer=tokenizer)
    messages = [_flat(message) for message in texts.messages]
    if None in messages:
        return Side(metered, rule="messages hold more than text")
    try:
        plain = [message for message in messages if message is not None]
        counted = tokenizer.count_chat(plain, tools=texts.tools, now=event.admitted_at)
    except CannotRender as error:
        return Side(metered, rule=str(error))
    rule = _WITH_TOOLS if texts.tools and counted != metered else None
    return Side(metered, counted, rule)


def _of_prompts(metered: int, prompt: Any, *, tokenizer: ModelTokenizer) -> Side:
    match prompt:
        case None:
            return Side(metered, rule="neither messages nor a prompt were kept")
        case str():
            return Side(metered, tokenizer.count_prompt(prompt))
        case [int(), *_]:
            return Side(metered, len(prompt))
    counts = [len(each) if isinstance(each, list) else tokenizer.count_prompt(each) for each in prompt]
    return Side(metered, sum(counts))


def _flat(message: Mapping[str, Any]) -> dict[str, Any] | None:
    """A message whose content is one text, as engines hand it to a template; None if it holds more."""
    content = message.get("content")
    if not isinstance(content, list):
        return dict(message)
    pieces = [part.get("text") if isinstance(part, dict) else part for part in content]
    texts = [piece for piece in pieces if isinstance(piece, str)]
    return {**message, "content": "\n".join(texts)} if len(texts) == len(pieces) else None


def _output(event: Event, texts: Texts, *, tokenizer: ModelTokenizer) -> Side:
    metered, amount = event.usage.output, event.choices * event.prompts
    answers = _answers(texts)
    if len(answers) != amount:
        return Side(metered, rule=f"{len(answers)} answers were kept, the request has {amount}")
    if amount == 1 and answers[0].finish_reason is None:
        answers = [msgspec.structs.replace(answers[0], finish_reason=event.finish_reason)]
    counted = sum(_count(answer, tokenizer) for answer in answers)
    return Side(metered, counted, _why_inexact(answers, texts, differs=counted != metered))


def _answers(texts: Texts) -> list[Answer]:
    kept: Sequence[str | Answer] = texts.answers or ([] if texts.answer is None else [texts.answer])
    return [answer if isinstance(answer, Answer) else Answer(answer) for answer in kept]


def _count(answer: Answer, tokenizer: ModelTokenizer) -> int:
    return tokenizer.count_text(answer.text) + (answer.finish_reason in _ENDED)


def _why_inexact(answers: Sequence[Answer], texts: Texts, *, differs: bool) -> str | None:
    """Why the answers' tokens can't be known from their texts, or None."""
    if any(answer.finish_reason is None for answer in answers):
        return "how each answer ended is not known"
    if any(answer.tool_calls for answer in answers):
        return "tool calls are written by the engine in the model's own form"
    if any(answer.reasoning for answer in answers):
        return "reasoning was cut out of the answer with the marks around it"
    if texts.stop and any(answer.finish_reason == "stop" for answer in answers):
        return "a stop string was cut off the answer"
    if texts.response_format and differs:
        return "a grammar makes the engine use other tokens for the same text"
    return None
