"""Reads an engine's SSE answer as it passes: follows its usage, cuts what the client did not ask for.

Events are relayed as the bytes they are. Of each, `find` tells whether it says anything about usage or
its end; only then are a few bytes looked at, and nothing is encoded anew. What belongs to the end (the
last `finish_reason`, the usage, `[DONE]`) is held back for the settlement to be durable first.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from app.gateway.answer import BROKEN_FINISHES
from app.gateway.dialect import Dialect
from app.gateway.errors import usage_json
from app.gateway.event_lines import is_whole, one_line, tells_error
from app.gateway.model import UsageWish
from app.gateway.spoken import Transcript
from app.gateway.surgery import find_member, without
from billing.metering.convert import Report
from billing.metering.dialect import read_timings, read_usage
from billing.metering.gauge import Gauge

MAX_EVENT_BYTES = 4 * 1024 * 1024
_END = re.compile(rb"\n\r?\n")
_DONE = re.compile(rb"data:\s*\[DONE\]\s*\Z")
_NULL = re.compile(rb"data:\s*null\s*\Z")
_FAILED = re.compile(rb'(?:data:\s*\{\s*"(?:error"\s*:\s*[{"]|object"\s*:\s*"error")|error:)')
_ERROR = b'"error"'
_FINISH = re.compile(rb'(?<!\\)"finish_reason"\s*:\s*"([^"\\]{1,64})"')
_EMPTY_LIST = re.compile(rb"\s*:\s*\[\s*\]")
_CHOICES = b'"choices"'
_USUAL = (b'data: {"id"', b'data: {"choices"')
"""How the chunks of vLLM and of llama-server begin: neither an end nor an error."""
_INDEX = re.compile(rb'(?<!\\)"index"\s*:\s*(\d{1,9})')
_PLAIN_USAGE = re.compile(
    rb'\{"prompt_tokens":\d{1,15},"total_tokens":\d{1,15},"completion_tokens":\d{1,15}(?:,"\w+":null)*\}'
)
"""A chunk's usage as vLLM writes it until the last one. Whatever looks otherwise is decoded at once."""
_SHORT = 64


class EventStream:
    """One streamed answer.

    wish: where the client wants usage.   choices: how many answers will finish.   rename: the engine's
    model name and the client's, as encoded JSON members, if they differ.
    done: the engine said `[DONE]`.   finished: every choice has its `finish_reason`.   failure: the
    engine's error frame in a stream of status 200, or that an event is too large.
    """

    def __init__(
        self,
        *,
        wish: UsageWish,
        choices: int,
        choices_per_prompt: int,
        dialect: Dialect,
        rename: tuple[bytes, bytes] | None = None,
    ) -> None:
        self._wish = wish
        self._choices = choices
        self._rename = rename
        self._per_choice = dialect.per_choice and choices > 1
        self._totals = dialect.totals or choices == 1
        self._gauge = Gauge(per_choice=self._per_choice, choices_per_prompt=choices_per_prompt)
        self._has_timings = dialect.timings
        self._late_usage: bytes | None = None
        self._tail = b""
        self._finishes = 0
        self._finished: set[bytes] = set()
        self._usage_event: bytes | None = None
        self._envelope: bytes | None = None
        self._transcript: Transcript | None = Transcript()
        self.held: list[bytes] = []
        self.done = False
        self.finished = False
        self.failure: bytes | None = None
        self.finish_reason: str | None = None

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes, cut anywhere; returns what may leave now (whole events)."""
        seen = len(self._tail)
        if seen:
            data = self._tail + data
        elif 0 < data.find(b"\n\n") == len(data) - 2 and b"\r" not in data:  # one event, as engines send them
            return self._take(data)
        leaving = []
        start = 0
        for blank_line in _END.finditer(data, max(seen - 2, 0)):
            end = blank_line.end()
            event = self._take(data[start:end])
            if event:
                leaving.append(event)
            start = end
        self._tail = data[start:]
        if len(self._tail) > MAX_EVENT_BYTES and self.failure is None:
            self.failure = b"an event of the engine's stream is too large"
        return leaving[0] if len(leaving) == 1 else b"".join(leaving)

    def close(self) -> None:
        """The engine's answer ended: an event that only lacks its blank line counts too."""
        if is_whole(one_line(self._tail)):
            self.held.append(self._take(self._tail))
        self._tail = b""
        if not self.done:
            self._hold_usage()

    def report(self) -> Report | None:
        """The usage reported so far."""
        self._read_late_usage()
        return self._gauge.report()

    def transcript(self) -> Transcript | None:
        """What was said while no usage was reported; None once there is one."""
        return self._transcript

    def _take(self, event: bytes) -> bytes:
        """What of an event may leave now."""
        if self.done or self.failure is not None:
            return b""
        if not event.startswith(_USUAL) or event.count(b"\n") > 2:
            event = one_line(event)
            if self._is_special(event):
                return b""
        if _ERROR in event and tells_error(event):
            self.failure = event
            return b""
        if self._has_timings:
            event = self._without_timings(event)
        if b'"usage"' in event:
            event = self._metered(event)
        if self._rename is not None:
            event = event.replace(*self._rename, 1)
        if b'"finish_reason":"' in event or b'"finish_reason": "' in event:
            self._note_finish(event)
            if self.failure is not None:
                return b""
        if self._transcript is not None:
            self._keep(event)
        if self.finished:
            self.held.append(event)
            return b""
        return event

    def _is_special(self, event: bytes) -> bool:
        """True for an event that is no chunk: the end, which is held; an error; nothing at all."""
        if len(event) < _SHORT and _DONE.match(event):
            self.done = True
            self._hold_usage()
            self.held.append(event)
        elif _FAILED.match(event):
            self.failure = event
        else:
            return _NULL.match(event) is not None
        return True

    def _note_finish(self, event: bytes) -> None:
        reasons = [match[1].decode("ascii", "replace") for match in _FINISH.finditer(event)]
        if not reasons:
            return
        if not BROKEN_FINISHES.isdisjoint(reasons):
            self.failure = event
        self.finish_reason = reasons[-1]
        index = _INDEX.search(event) if len(reasons) == 1 else None
        if index is None:
            self._finishes += len(reasons)
        elif index[1] not in self._finished:  # said twice, a choice has finished once
            self._finished.add(index[1])
            self._finishes += 1
        self.finished = self._finishes >= self._choices

    def _metered(self, event: bytes) -> bytes:
        """The event without what the client did not ask for, once its usage is noted."""
        usage = find_member(event, b'"usage"')
        if usage is None:
            return event
        raw = event[usage.value : usage.end]
        if raw != b"null":
            choices = event.find(_CHOICES)
            if choices >= 0 and _EMPTY_LIST.match(event, choices + len(_CHOICES)):
                self._note_last_usage(raw, event)
                self._usage_event = event
                return b""  # it comes back before `[DONE]`, if it was asked for
            self._observe_usage(raw, event)
            self._envelope = event
        return event if self._wish is UsageWish.EVERY else without(event, usage)

    def _without_timings(self, event: bytes) -> bytes:
        timings = find_member(event, b'"timings"')
        if timings is None:
            return event
        self._observe(read_timings(event[timings.value : timings.end]), event)
        event = self._envelope = without(event, timings)
        return event

    def _observe_usage(self, raw: bytes, event: bytes) -> None:
        """Note a usage. One that is superseded whole by the next is not even decoded."""
        if not self._per_choice and _PLAIN_USAGE.fullmatch(raw):
            self._late_usage = raw
        else:
            self._read_late_usage()
            self._observe(read_usage(raw), event)

    def _note_last_usage(self, raw: bytes, event: bytes) -> None:
        """Note the usage of the chunk without choices, where it counts all of them."""
        if not self._per_choice:
            self._observe_usage(raw, event)
        elif self._totals and (report := read_usage(raw)) is not None:
            self._gauge.conclude(report)

    def _read_late_usage(self) -> None:
        if self._late_usage is not None:
            raw, self._late_usage = self._late_usage, None
            self._gauge.observe(read_usage(raw))

    def _observe(self, report: Report | None, event: bytes) -> None:
        if not self._per_choice:
            self._gauge.observe(report)
        elif index := _INDEX.search(event):
            self._gauge.observe(report, choice=int(index[1]))

    def _keep(self, event: bytes) -> None:
        assert self._transcript is not None
        report = self.report()
        if report is not None and report.is_full:
            self._transcript = None
        else:
            self._transcript.add(event)

    def _hold_usage(self) -> None:
        """Add the stream's one usage event to what is held, if the client asked for it."""
        if self._wish is UsageWish.NONE:
            return
        if self._usage_event is not None and self._totals:
            event = self._usage_event
        else:
            event = self._made_usage_event()
        self._usage_event = self._envelope = None
        if event:
            self.held.append(event.replace(*self._rename, 1) if self._rename else event)

    def _made_usage_event(self) -> bytes:
        """For engines that put the usage elsewhere, or one for each choice: an event in OpenAI's form."""
        report, source = self.report(), self._usage_event or self._envelope
        if report is None or source is None:
            return b""
        try:
            chunk: dict[str, Any] = msgspec.json.decode(source.partition(b"data:")[2])
        except msgspec.DecodeError:
            return b""
        chunk["choices"] = []
        chunk["usage"] = usage_json(report)
        return b"data: " + msgspec.json.encode(chunk) + b"\n\n"
