"""What a client is told last, once it is known whether its request's settlement is on the disk. Pure."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from app.core.errors import SteelyardError
from app.core.ids import RequestId
from app.gateway.answer import with_usage
from app.gateway.errors import error_event, error_headers, error_json, usage_json
from app.gateway.model import Headers
from app.gateway.verdict import JOURNAL_FAILED
from billing.journal.model import Settled
from billing.metering.convert import Report
from billing.metering.model import Usage

_JSON = (b"content-type", b"application/json")


class Told(NamedTuple):
    """The last bytes.   answer: status and headers, unless they belong to a stream that has begun."""

    body: bytes
    answer: tuple[int, Headers] | None


class LastWord(msgspec.Struct, frozen=True):
    """The end of an answer.

    in_stream: a stream has begun.   body: its held events, or the whole answer.   error: instead of them.
    report: the usage so far, told with an error.   usage_holds False: the answer's own usage is not that of
    all its choices, so the one that was counted takes its place.
    """

    request_id: RequestId
    in_stream: bool
    status: int = 200
    body: bytes = b""
    error: SteelyardError | None = None
    report: Report | None = None
    usage_holds: bool = True

    def told(self, settled: Settled | None) -> Told:
        """The bytes.   settled: the record on the disk; None if it could not get there."""
        error = self.error if settled is not None else JOURNAL_FAILED
        if error is not None:
            billed_tokens = settled.billed.total if settled is not None else 0
            if self.in_stream:
                report = self.report if settled is not None else None
                event = error_event(error, self.request_id, billed_tokens=billed_tokens, report=report)
                return Told(event, None)
            body = error_json(error, self.request_id, billed_tokens=billed_tokens)
            return Told(body, (error.status, [_JSON, *error_headers(error)]))
        if self.in_stream:
            return Told(self.body, None)
        body = self.body
        if not self.usage_holds:
            assert settled is not None
            known = settled.unknown_bound is None
            body = with_usage(body, usage_json(_report(settled.usage)) if known else None)
        return Told(body, (self.status, [_JSON]))


def _report(usage: Usage) -> Report:
    return Report(
        prompt=usage.total - usage.output, completion=usage.output, cached=usage.input_cached or None
    )
