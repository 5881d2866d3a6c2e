"""Structured logs: one JSON object a line on standard error, with facts as fields and no secrets.

`log.info("request_settled", extra={"request_id": …})` becomes
`{"time":…,"level":"info","process":…,"logger":…,"event":"request_settled","request_id":…}`.
"""

from __future__ import annotations

import logging
import re
import sys
import traceback
from typing import Any, TextIO

import msgspec

from app.core.clock import from_ms

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_SECRET = re.compile(
    r"(sk-sy-|sya_)[A-Za-z0-9_-]{8,}|whsec_[A-Za-z0-9+/=]{8,}|(?<=://)[^/@\s:]+:[^/@\s]+(?=@)"
)
_encode = msgspec.json.Encoder(enc_hook=str).encode


def redact(text: str) -> str:
    """`text` with API keys, access tokens, webhook secrets and passwords in URLs replaced by `[secret]`."""
    return _SECRET.sub("[secret]", text)


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object; strings in it are redacted."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": from_ms(int(record.created * 1000)).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "event": record.getMessage(),
        }
        line.update((k, v) for k, v in vars(record).items() if k not in _STANDARD)
        if record.exc_info and record.exc_info[1] is not None:
            line["exception"] = "".join(traceback.format_exception(record.exc_info[1]))
        return redact(_encode(line).decode())


def configure(process: str, *, level: str = "INFO", stream: TextIO | None = None) -> None:
    """Send every logger's lines to `stream` (standard error) as JSON. Call once a process."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(process))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    logging.getLogger("uvicorn.access").disabled = True
    logging.getLogger("httpx").setLevel(logging.WARNING)
