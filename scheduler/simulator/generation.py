"""One answer in the making: its steps in time, what it writes, and where its fault strikes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from scheduler.simulator.model import Fault, FaultKind, Options
from scheduler.simulator.request import Asked
from scheduler.simulator.stats import Served, Stats
from scheduler.simulator.wire import (
    CORE_DIED,
    DONE,
    Answer,
    error_body,
    error_frame,
    json_body,
    role_chunk,
    token_chunk,
    usage_chunk,
)

BURST_STEPS = 32
"""Steps per turn of the loop when no time is asked for between them."""


class Reply(Protocol):
    """The connection an answer is written to."""

    @property
    def blocked(self) -> bool:
        """True while the client doesn't read fast enough."""
        ...

    def stream_head(self) -> None: ...
    def stream_events(self, events: list[bytes]) -> None: ...
    def stream_end(self) -> None: ...
    def whole(self, status: int, body: bytes, *, send: int | None = None) -> None:
        """A JSON answer; `send`: only that many of its bytes, the rest never."""
        ...

    def abort(self) -> None: ...


class Generation:
    """Runs from its slot in the engine to its end; tells `on_end` once, whatever ends it."""

    def __init__(
        self,
        answer: Answer,
        asked: Asked,
        *,
        options: Options,
        fault: Fault | None,
        reply: Reply,
        stats: Stats,
        served: Served,
        on_end: Callable[[Generation], None],
    ) -> None:
        self._answer = answer
        self._asked = asked
        self._options = options
        self._fault = fault
        self._reply = reply
        self._stats = stats
        self._served = served
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None
        self._began_at: float | None = None
        self._steps = 0
        self._ended = False
        self.started = False

    def start(self) -> None:
        """It has its slot: prefill, then the first token."""
        self.started = True
        if self._strikes(FaultKind.HANG):
            return
        options = self._options
        wait_ms = options.ttft_ms + options.prefill_ms_per_ktoken * self._answer.prompt_tokens / 1000
        self._timer = self._loop.call_later(wait_ms / 1000, self._begin)

    def resume(self) -> None:
        """The client reads again."""
        if self._asked.stream and self._began_at is not None and self._timer is None and not self._ended:
            self._run()

    def abandon(self) -> None:
        """The client is gone: stop generating."""
        if self._ended:
            return
        if not self._asked.stream and self._began_at is not None and self._options.chunk_ms:
            steps = int((self._loop.time() - self._began_at) * 1000 / self._options.chunk_ms)
            self._count(min(steps * self._options.tokens_per_chunk, self._asked.tokens))
        self._end("abort")

    def _begin(self) -> None:
        self._timer = None
        self._began_at = self._loop.time()
        if not self._asked.stream:
            total_ms = self._options.chunk_ms * -(-self._asked.tokens // self._options.tokens_per_chunk)
            if total_ms:
                self._timer = self._loop.call_later(total_ms / 1000, self._whole)
            else:
                self._whole()
            return
        self._reply.stream_head()
        if self._strikes(FaultKind.HANG_AFTER_HEAD):
            return
        if self._answer.chat:
            continuous = self._usage_asked(continuous=True)
            choices = range(self._asked.choices)
            self._reply.stream_events([role_chunk(self._answer, i, continuous=continuous) for i in choices])
        self._run()

    def _run(self) -> None:
        self._timer = None
        for _ in range(1 if self._options.chunk_ms else BURST_STEPS):
            if self._reply.blocked or self._ended or self._struck():
                return
            self._step()
            if self._steps * self._options.tokens_per_chunk >= self._asked.tokens:
                self._finish()
                return
        if self._options.chunk_ms:
            # From the beginning, not from now: the pace of a stream doesn't drift.
            due = (self._began_at or 0.0) + self._steps * self._options.chunk_ms / 1000
            self._timer = self._loop.call_at(due, self._run)
        else:
            self._timer = self._loop.call_soon(self._run)

    def _step(self) -> None:
        first = self._steps * self._options.tokens_per_chunk
        count = min(self._options.tokens_per_chunk, self._asked.tokens - first)
        self._steps += 1
        self._count(count)
        last = first + count >= self._asked.tokens
        choices = self._asked.choices
        self._reply.stream_events(
            [
                token_chunk(
                    self._answer,
                    index,
                    first=first,
                    count=count,
                    continuous=self._usage_asked(continuous=True)
                    or (last and index == choices - 1 and self._strikes(FaultKind.DOUBLE_USAGE)),
                    last_word=last and index == choices - 1 and not self._usage_asked(),
                )
                for index in range(choices)
            ]
        )

    def _finish(self) -> None:
        self._reply.stream_events([usage_chunk(self._answer), DONE] if self._usage_asked() else [DONE])
        self._end("stop" if self._asked.stops else "length")
        self._reply.stream_end()

    def _struck(self) -> bool:
        """True if a fault of this stream strikes now."""
        fault = self._fault
        if fault is None or self._steps < fault.n:
            return False
        if fault.kind in (FaultKind.STALL, FaultKind.HANG_AFTER_HEAD):
            return True
        if fault.kind is FaultKind.DIE:
            self._end("error")
            self._reply.abort()
            return True
        if fault.kind is FaultKind.ERROR:
            self._reply.stream_events([error_frame(), DONE])
            self._end("error")
            self._reply.stream_end()
            return True
        return False

    def _whole(self) -> None:
        self._timer = None
        self._count(self._asked.tokens)
        if self._strikes(FaultKind.ERROR):
            self._end("error")
            self._reply.whole(500, error_body(CORE_DIED, kind="InternalServerError", status=500))
            return
        body = json_body(self._answer, usage=not self._strikes(FaultKind.NO_USAGE))
        if self._strikes(FaultKind.HANG_AFTER_HEAD) or self._strikes(FaultKind.STALL):
            self._reply.whole(200, body, send=len(body) // 2 if self._strikes(FaultKind.STALL) else 0)
            return
        dies = self._strikes(FaultKind.DIE)
        self._end("error" if dies else "stop" if self._asked.stops else "length")
        self._reply.whole(200, body, send=len(body) // 2 if dies else None)
        if dies:
            self._reply.abort()

    def _usage_asked(self, *, continuous: bool = False) -> bool:
        asked = self._asked.continuous_usage if continuous else self._asked.include_usage
        return asked and not self._strikes(FaultKind.NO_USAGE)

    def _strikes(self, kind: FaultKind) -> bool:
        return self._fault is not None and self._fault.kind is kind

    def _count(self, tokens: int) -> None:
        self._stats.generated(self._served, tokens * self._asked.choices)

    def _end(self, outcome: str) -> None:
        if self._ended:
            return
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._stats.ended(self._served, outcome)
        self._on_end(self)
