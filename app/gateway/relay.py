"""relay: between one engine's answer and one client, until either ends. Decides how the request ended.

                 piece ──▶ EventStream ──▶ Outbox ──▶ client
    dispatch ──▶ end, error ─┐
    client   ──▶ gone ───────┼──▶ one Ending ──▶ settlement ──▶ durable ──▶ the last bytes
    shutdown ──▶ abort ──────┘

The engine's callbacks and the client's going are synchronous, so whichever comes first ends the request
and later ones find it ended. The last bytes leave when the settlement is on the disk, and not before.
"""

from __future__ import annotations

import asyncio
import logging

from app.core.errors import EngineError, Rejected, SteelyardError, StreamBroken
from app.core.ids import TenantId
from app.gateway.answer import MAX_ANSWER_BYTES, Answer, read_answer, rename_members
from app.gateway.dialect import PLAIN, Dialect, dialect_of
from app.gateway.event_stream import EventStream
from app.gateway.last_word import LastWord
from app.gateway.model import Admission, Headers, UsageWish
from app.gateway.outbox import Outbox
from app.gateway.ports import Dispatch
from app.gateway.settle import Ending, Settlement
from app.gateway.tokenizer import Uncounted, uncounted_of
from app.gateway.verdict import engine_refusal, outcome_of, stream_failure, was_untouched
from billing.journal.model import Reading, Settled
from billing.metering.convert import Report, convert
from billing.metering.model import Outcome
from scheduler.registry.model import BackendSpec

log = logging.getLogger(__name__)

MAX_REFUSAL_BYTES = 64 * 1024
LAST_WORD_S = 2.0
"""How long an engine that has finished is heard out for its usage after the client has left."""
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Relay:
    """One admitted request on its way: the scheduler's sink, the outbox's source."""

    def __init__(self, admission: Admission, settlement: Settlement) -> None:
        self.outbox = Outbox(on_full=self._pause, on_room=self._resume)
        self._admission = admission
        self._settlement = settlement
        self._dispatch: Dispatch | None = None
        self._backend: BackendSpec | None = None
        self._dialect: Dialect = PLAIN
        self._status = 200
        self._engine_headers: Headers = []
        self._stream: EventStream | None = None
        self._collected: list[bytes] = []
        self._collected_bytes = 0
        self._ttft_ms: int | None = None
        self._bytes_relayed = 0
        self._ended = False
        self._paused = False
        self._gone = False
        self._last = LastWord(admission.request_id, in_stream=False)

    def follow(self, dispatch: Dispatch) -> None:
        """The dispatch that delivers into this relay. Before any of its callbacks."""
        self._dispatch = dispatch

    @property
    def ended(self) -> bool:
        return self._ended

    @property
    def tenant_id(self) -> TenantId:
        return self._admission.record.tenant_id

    def reading(self) -> Reading | None:
        """Where the answer stands, for the journal's progress row, and for rates; None before it begins."""
        if self._backend is None or self._ended:
            return None
        report = self._stream.report() if self._stream else None
        converted = convert(report, convention=self._dialect.convention) if report else None
        if converted is not None and self._admission.rates:
            self._settlement.consume(converted.usage)
        return Reading(
            self._admission.request_id,
            self._backend.backend_id,
            converted.usage if converted else None,
            self._bytes_relayed,
        )

    # What the scheduler delivers.

    def head(self, status: int, headers: Headers, *, backend: BackendSpec) -> None:
        self._status, self._engine_headers, self._backend = status, headers, backend
        self._dialect = dialect_of(backend.engine)
        content_type = next((value for name, value in headers if name == b"content-type"), b"")
        if status == 200 and self._admission.ask.streamed and content_type.startswith(b"text/event-stream"):
            self._start_stream(backend)

    def piece(self, data: bytes) -> None:
        if self._ended:
            return
        try:
            self._take(data)
        except Exception:  # a sink must not raise into the transport: the request ends, the process stays
            log.exception("relay_broke", extra={"request_id": self._admission.request_id})
            self._cancel()
            self._fail(StreamBroken("The answer could not be read."))

    def end(self) -> None:
        if self._ended:
            return
        if self._stream is not None:
            self._end_stream(self._stream)
        elif self._status != 200:
            refusal = engine_refusal(self._status, b"".join(self._collected), headers=self._engine_headers)
            self._fail(refusal)
        else:
            self._end_whole(b"".join(self._collected))

    def error(self, error: EngineError | Rejected) -> None:
        if not self._ended:
            self._break_off(error)

    # What the client and the process do.

    def gone(self) -> None:
        """The client's connection is lost. What it had seen to its end is complete, whatever came after.

        An engine that has finished generating is heard out for a moment, for its last word on the usage:
        else whoever hangs up just before the last event would pay nothing, or too much for what was cached.
        """
        self._gone = True
        if not self._ended and self._stream is not None and self._stream.finished:
            self._resume()
            asyncio.get_running_loop().call_later(LAST_WORD_S, self._leave)
        else:
            self._leave()

    def forget(self) -> None:
        """Let go of the dispatch and the client, so that nothing holds the request's body any longer."""
        self._dispatch = None
        self.outbox.forget()

    def abort(self, error: SteelyardError) -> None:
        """End it for a reason of our own, told to the client."""
        if not self._ended:
            self._cancel()
            self._break_off(error)

    # How it goes on.

    def _leave(self) -> None:
        if not self._ended:
            complete = self._stream is not None and self._stream.finished
            outcome = Outcome.COMPLETED if complete else Outcome.CLIENT_CANCELLED
            self._cancel()
            ending = self._ending(
                outcome, status=200 if complete else 499, complete=complete, uncounted=self._uncounted()
            )
            self._settle(ending)
        self.outbox.drop()

    def _break_off(self, error: SteelyardError) -> None:
        """End it with an error, unless all was said before: then the answer is whole."""
        if self._stream is not None and self._stream.finished:
            self._end_stream(self._stream)
        else:
            self._fail(error)

    def _start_stream(self, backend: BackendSpec) -> None:
        ask = self._admission.ask
        self._stream = EventStream(
            wish=ask.usage_wish,
            choices=ask.choices * ask.prompts,
            choices_per_prompt=ask.choices,
            dialect=self._dialect,
            rename=rename_members(backend.served_model, ask.model),
        )
        self.outbox.start(200, [*_STREAM_HEADERS, *self._own_headers()])

    def _take(self, data: bytes) -> None:
        if self._ttft_ms is None:
            self._ttft_ms = self._settlement.elapsed_ms()
        stream = self._stream
        if stream is None:
            self._collect(data)
            return
        leaving = stream.feed(data)
        if leaving:
            self._bytes_relayed += len(leaving)
            self.outbox.put(leaving)
        if stream.failure is not None or stream.done:
            self._end_stream(stream)

    def _collect(self, data: bytes) -> None:
        self._collected_bytes += len(data)
        if self._status != 200:
            if self._collected_bytes <= MAX_REFUSAL_BYTES:
                self._collected.append(data)
        elif self._collected_bytes > MAX_ANSWER_BYTES:
            self._cancel()
            self._fail(StreamBroken("The engine's answer is too large."))
        else:
            self._collected.append(data)

    def _end_stream(self, stream: EventStream) -> None:
        stream.close()
        if stream.failure is not None:
            self._broke_inside()
            self._fail(stream_failure(stream.failure))
        elif not stream.done and not stream.finished:
            self._fail(StreamBroken("The engine's answer ended before its end."))
        else:
            last = LastWord(self._admission.request_id, in_stream=True, body=b"".join(stream.held))
            self._complete(last, report=stream.report(), finish_reason=stream.finish_reason)

    def _end_whole(self, body: bytes) -> None:
        answer = read_answer(body)
        if answer is None:
            self._fail(StreamBroken("The engine's answer can't be read."))
            return
        if answer.is_broken:
            self._broke_inside()
            self._fail(StreamBroken("The engine failed while it answered."), answer=answer)
            return
        assert self._backend is not None
        rename = rename_members(self._backend.served_model, self._admission.ask.model)
        last = LastWord(
            self._admission.request_id,
            in_stream=False,
            body=body.replace(*rename, 1) if rename else body,
            usage_holds=self._usage_holds,
        )
        report = answer.report if self._usage_holds else None
        self._complete(last, report=report, finish_reason=answer.finish_reason, answer=answer)

    @property
    def _usage_holds(self) -> bool:
        """True if the usage in a whole answer is that of all its choices."""
        ask = self._admission.ask
        return self._dialect.totals or ask.choices * ask.prompts == 1

    def _broke_inside(self) -> None:
        if self._dispatch is not None:
            self._dispatch.broke_inside()

    def _complete(
        self,
        last: LastWord,
        *,
        report: Report | None,
        finish_reason: str | None,
        answer: Answer | None = None,
    ) -> None:
        if self._dispatch is not None and report is not None and report.prompt is not None:
            self._dispatch.finished(report.prompt, report.completion or 0)
        self._last = last
        self._bytes_relayed += len(last.body)
        ending = self._ending(
            Outcome.COMPLETED,
            status=self._status,
            complete=True,
            report=report,
            finish_reason=finish_reason,
            uncounted=self._uncounted(answer),
        )
        self._settle(ending)

    def _fail(self, error: SteelyardError, *, answer: Answer | None = None) -> None:
        """End with an error: as an event if the stream has begun, else as an answer of its own."""
        stream, outcome = self._stream, outcome_of(error)
        shown = stream.report() if stream and self._admission.ask.usage_wish is not UsageWish.NONE else None
        self._last = LastWord(
            self._admission.request_id, in_stream=stream is not None, error=error, report=shown
        )
        ending = self._ending(
            outcome,
            status=200 if stream is not None else error.status,
            error_code=error.code,
            untouched=was_untouched(error, self._dispatch),
            report=answer.report if answer is not None else None,
            uncounted=self._uncounted(answer, engine_lives=outcome is not Outcome.ENGINE_FAILED),
        )
        self._settle(ending)

    def _ending(
        self,
        outcome: Outcome,
        *,
        status: int,
        complete: bool = False,
        untouched: bool = False,
        report: Report | None = None,
        error_code: str | None = None,
        finish_reason: str | None = None,
        uncounted: Uncounted | None = None,
    ) -> Ending:
        stream, backend = self._stream, self._backend
        return Ending(
            outcome,
            status=status,
            report=stream.report() if stream is not None else report,
            complete=complete,
            untouched=untouched or self._dispatch is None or not self._dispatch.attempts,
            dialect=self._dialect,
            backend_id=backend.backend_id if backend else None,
            error_code=error_code,
            finish_reason=stream.finish_reason if stream is not None else finish_reason,
            ttft_ms=self._ttft_ms,
            bytes_relayed=self._bytes_relayed,
            uncounted=uncounted,
        )

    def _uncounted(self, answer: Answer | None = None, *, engine_lives: bool = True) -> Uncounted | None:
        """What a tokenizer may count: only where something was delivered and somebody can count."""
        backend, said = self._backend, self._stream or answer
        if backend is None or said is None:
            return None
        if not self._settlement.can_count(self._dialect, engine_lives=engine_lives):
            return None
        return uncounted_of(said, backend, ask=self._admission.ask, engine_lives=engine_lives)

    def _settle(self, ending: Ending) -> None:
        self._ended = True
        self._collected.clear()
        self._resume()  # the engine's own end must still be read, so that its place is given back
        attempts = self._dispatch.attempts if self._dispatch is not None else ()
        self._settlement.settle(ending, attempts=attempts, on_durable=self._durable)

    def _durable(self, settled: Settled | None) -> None:
        """The settlement is on the disk, or (None) can't be: only now the last bytes leave."""
        if self._gone:
            self.outbox.drop()
            return
        told = self._last.told(settled)
        if told.answer is not None:
            status, headers = told.answer
            length = (b"content-length", b"%d" % len(told.body))
            self.outbox.start(status, [*headers, length, *self._own_headers()])
        self.outbox.finish(told.body)

    def _own_headers(self) -> Headers:
        admission = self._admission
        return [(b"x-request-id", admission.request_id.encode()), *admission.headers]

    def _cancel(self) -> None:
        if self._dispatch is not None:
            self._dispatch.cancel()

    def _pause(self) -> None:
        if self._dispatch is not None and not self._ended:
            self._paused = True
            self._dispatch.pause()

    def _resume(self) -> None:
        if self._dispatch is not None and self._paused:
            self._paused = False
            self._dispatch.resume()
