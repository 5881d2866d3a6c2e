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
from app.gateway.answer import MAX_ANSWER_BYTES, read_answer, rename_members
from app.gateway.dialect import PLAIN, Dialect, dialect_of
from app.gateway.errors import error_event, error_headers, error_json
from app.gateway.event_stream import EventStream
from app.gateway.model import Admission, Headers, UsageWish
from app.gateway.outbox import Outbox
from app.gateway.ports import Dispatch
from app.gateway.settle import Ending, Settlement
from app.gateway.tokenizer import Uncounted
from app.gateway.verdict import JOURNAL_FAILED, engine_refusal, outcome_of, stream_failure, was_untouched
from billing.journal.model import Reading
from billing.metering.convert import Report, convert
from billing.metering.model import Outcome
from scheduler.registry.model import BackendSpec

log = logging.getLogger(__name__)

MAX_REFUSAL_BYTES = 64 * 1024
LAST_WORD_S = 2.0
"""How long an engine that has finished is heard out for its usage after the client has left."""
_JSON = (b"content-type", b"application/json")
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
        self._answer: tuple[int, Headers] | None = None
        self._last = b""

    def follow(self, dispatch: Dispatch) -> None:
        """The dispatch that delivers into this relay. Before any of its callbacks."""
        self._dispatch = dispatch

    @property
    def ended(self) -> bool:
        return self._ended

    def reading(self) -> Reading | None:
        """Where the answer stands, for the journal's progress row; None before an engine answers."""
        if self._backend is None or self._ended:
            return None
        report = self._stream.report() if self._stream else None
        converted = convert(report, convention=self._dialect.convention) if report else None
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
        elif self._status >= 400:
            refusal = engine_refusal(self._status, b"".join(self._collected), headers=self._engine_headers)
            self._fail(refusal)
        else:
            self._end_whole(b"".join(self._collected))

    def error(self, error: EngineError | Rejected) -> None:
        if not self._ended:
            self._fail(error)

    # What the client and the process do.

    def gone(self) -> None:
        """The client's connection is lost. What it had seen to its end is complete, whatever came after.

        An engine that has finished generating but not yet told the usage is heard out for a moment:
        else whoever hangs up just before the last event would pay nothing.
        """
        self._gone = True
        stream = self._stream
        if not self._ended and stream is not None and stream.finished and stream.report() is None:
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
            self._fail(error)

    # How it goes on.

    def _leave(self) -> None:
        if not self._ended:
            complete = self._stream is not None and self._stream.finished
            outcome = Outcome.COMPLETED if complete else Outcome.CLIENT_CANCELLED
            self._cancel()
            self._settle(self._ending(outcome, status=200 if complete else 499, complete=complete))
        self.outbox.drop()

    def _start_stream(self, backend: BackendSpec) -> None:
        ask = self._admission.ask
        self._stream = EventStream(
            wish=ask.usage_wish,
            choices=ask.choices * ask.prompts,
            choices_per_prompt=ask.choices,
            dialect=self._dialect,
            rename=rename_members(backend.served_model, ask.model),
        )
        self.outbox.start(200, [*_STREAM_HEADERS, self._id_header()])

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
        if self._status >= 400:
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
            if self._dispatch is not None:
                self._dispatch.broke_inside()
            self._fail(stream_failure(stream.failure))
        elif not stream.done and not stream.finished:
            self._fail(StreamBroken("The engine's answer ended before its end."))
        else:
            self._last = b"".join(stream.held)
            self._complete(stream.report(), stream.finish_reason)

    def _end_whole(self, body: bytes) -> None:
        ask = self._admission.ask
        usage_holds = self._dialect.totals or ask.choices * ask.prompts == 1
        answer = read_answer(body, usage_holds=usage_holds)
        if answer is None:
            self._fail(StreamBroken("The engine's answer can't be read."))
            return
        assert self._backend is not None
        rename = rename_members(self._backend.served_model, ask.model)
        self._last = body.replace(*rename, 1) if rename else body
        self._answer = (self._status, [_JSON])
        self._complete(answer.report, answer.finish_reason, texts=answer.texts)

    def _complete(
        self, report: Report | None, finish_reason: str | None, *, texts: tuple[str, ...] = ()
    ) -> None:
        if self._dispatch is not None and report is not None and report.prompt is not None:
            self._dispatch.finished(report.prompt, report.completion or 0)
        self._bytes_relayed += len(self._last)
        self._settle(
            self._ending(
                Outcome.COMPLETED,
                status=self._status,
                complete=True,
                report=report,
                finish_reason=finish_reason,
                texts=texts,
            )
        )

    def _fail(self, error: SteelyardError) -> None:
        """End with an error: as an event if the stream has begun, else as an answer of its own."""
        request_id = self._admission.request_id
        if self._stream is not None:
            report = self._stream.report() if self._admission.ask.usage_wish is not UsageWish.NONE else None
            self._last = error_event(error, request_id, report=report)
        else:
            self._last = error_json(error, request_id)
            self._answer = (error.status, [_JSON, *error_headers(error)])
        self._settle(
            self._ending(
                outcome_of(error),
                status=200 if self._stream is not None else error.status,
                error_code=error.code,
                untouched=was_untouched(error, self._dispatch),
            )
        )

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
        texts: tuple[str, ...] = (),
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
            uncounted=None if outcome is Outcome.ENGINE_FAILED else self._uncounted(texts),
        )

    def _uncounted(self, texts: tuple[str, ...]) -> Uncounted | None:
        """What a tokenizer may count: only where something was delivered and an engine can count."""
        if self._backend is None or self._dialect.tokenize is None:
            return None
        events = self._stream.unmetered() if self._stream is not None else None
        if not events and not texts:
            return None
        return Uncounted(self._backend, self._dialect, tuple(events or ()), texts)

    def _settle(self, ending: Ending) -> None:
        self._ended = True
        self._collected.clear()
        self._resume()  # the engine's own end must still be read, so that its place is given back
        attempts = self._dispatch.attempts if self._dispatch is not None else ()
        self._settlement.settle(ending, attempts=attempts, on_durable=self._durable)

    def _durable(self, is_durable: bool) -> None:  # noqa: FBT001 - the journal's callback
        """The settlement is on the disk, or can't be: only now the last bytes leave."""
        if self._gone:
            self.outbox.drop()
            return
        last, answer = self._last, self._answer
        if not is_durable:
            request_id = self._admission.request_id
            last = error_event(JOURNAL_FAILED, request_id)
            if self._stream is None:
                last = error_json(JOURNAL_FAILED, request_id)
                answer = (JOURNAL_FAILED.status, [_JSON, *error_headers(JOURNAL_FAILED)])
        if answer is not None:
            status, headers = answer
            self.outbox.start(status, [*headers, (b"content-length", b"%d" % len(last)), self._id_header()])
        self.outbox.finish(last)

    def _id_header(self) -> tuple[bytes, bytes]:
        return (b"x-request-id", self._admission.request_id.encode())

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
