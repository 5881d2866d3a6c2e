"""Reads the responses of one connection out of raw bytes; it does no I/O (pure but for its own state).

llhttp does the syntax, in its strict mode: bare CR or LF, folded lines, Content-Length twice or beside
Transfer-Encoding are errors. Here are the rules on top: which responses a client may believe, how their
body ends (RFC 9112 §6.3), bounds for head and trailers, and whether a byte came that nobody asked for.
"""

from __future__ import annotations

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from scheduler.transport.model import Limits

_MAX_INFORMATIONAL = 8
_TAIL = 5
_HEAD_END = b"\r\n\r\n"


class _Malformed(Exception):
    """Stops the parser from inside a callback; never leaves this module."""


class ResponseReader:
    """After each `feed`, tells what is known: `status`, `headers`, new `pieces`, `complete`, `fault`.

    status: 0 until the final head is complete.   pieces: body bytes not yet taken with `take`.
    fault: why what came is no response; nothing after it is read.   reusable: the connection may carry
    another exchange (only meaningful when complete).
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append
        self._parser = HttpResponseParser(self)
        self.begin()

    def begin(self, *, bodiless: bool = False) -> None:
        """Expect a new response; `bodiless` if it answers a HEAD."""
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.complete = False
        self.reusable = False
        self.fault: str | None = None
        self._bodiless = bodiless
        self._until_close = False
        self._sized = False
        self._informational = 0
        self._skipping = False
        self._barren_bytes = 0
        self._tail = b""
        self._pieces.clear()

    def feed(self, data: bytes) -> None:
        """Read some bytes; never raises."""
        if not self._tail and data[:1] != b"H":
            self.fault = "not an HTTP response"
            return
        had_head = self.status
        self._barren_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            self.fault = "switching protocols"
        except HttpParserError as error:
            self._stop(error)
        self._tail = data[-_TAIL:] if len(data) >= _TAIL else (self._tail + data)[-_TAIL:]
        if self.complete:
            self.reusable = self.reusable and not self._has_excess(data)
        elif self._pieces or self.status != had_head:
            self._barren_bytes = 0
        elif self._barren_bytes > self._limits.head_bytes and self.fault is None:
            # The parser may be gathering, without a callback, an endless header, trailer or extension.
            self.fault = "too many bytes without a body"

    def take(self) -> bytes:
        """The body bytes that came since the last call, in one piece; empty if none."""
        pieces = self._pieces
        if not pieces:
            return b""
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        return data

    def ends_with_connection(self) -> bool:
        """True if the peer's orderly close is the end of this response's body."""
        return self._until_close and self.fault is None and not self.complete

    def _stop(self, error: HttpParserError) -> None:
        """A fault, unless the response was complete: then what follows it is only excess."""
        if self.complete:
            self.reusable = False
            return
        cause = error.__context__
        self.fault = str(cause) if isinstance(cause, _Malformed) else f"malformed response: {error}"

    def _has_excess(self, data: bytes) -> bool:
        """True if bytes follow the end. llhttp skips empty lines between responses in silence; we don't."""
        if self._sized:
            return bool(self._pieces) and not data.endswith(self._pieces[-1])
        return self._tail[-4:] != _HEAD_END or self._tail[:1] in (b"\r", b"\n")

    # Callbacks of the parser.

    def on_message_begin(self) -> None:
        if self.complete:
            raise _Malformed("bytes after the end of the response")
        self._skipping = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.status:  # else a trailer, which we ignore
            self.headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if 100 <= status < 200:
            self._skip_informational(status)
            return
        if not 200 <= status <= 599:
            raise _Malformed("status out of range")
        version = self._parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise _Malformed("unknown HTTP version")
        self._bound_head()
        self._frame(status, version)
        self.reusable = self._parser.should_keep_alive() and not self._bodiless
        self.status = status
        if self._bodiless:
            self.complete = True
            raise _Malformed("the answer to a HEAD ends with its head")

    def on_message_complete(self) -> None:
        if not self._skipping:
            self.complete = True

    def _skip_informational(self, status: int) -> None:
        self._informational += 1
        if status == 101 or self._informational > _MAX_INFORMATIONAL:
            raise _Malformed("switching protocols" if status == 101 else "too many informational responses")
        if any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers):
            raise _Malformed("an informational response has no body")
        self.headers.clear()
        self._skipping = True

    def _bound_head(self) -> None:
        limits = self._limits
        if len(self.headers) > limits.head_count:
            raise _Malformed("too many headers")
        if self._barren_bytes <= limits.head_bytes:
            return  # all that has come is less
        if sum([len(name) + len(value) for name, value in self.headers]) > limits.head_bytes:
            raise _Malformed("headers too large")

    def _frame(self, status: int, version: str) -> None:
        """Decide how the body ends. llhttp has refused a size twice, beside a coding, or not in digits."""
        size = coding = None
        for name, value in self.headers:
            if name == b"content-length":
                size = value
            elif name == b"transfer-encoding":
                coding = value.lower() if coding is None else b"several"
        if coding is not None and (coding != b"chunked" or version == "1.0"):
            raise _Malformed("transfer coding other than chunked alone")
        if status in (204, 304) or self._bodiless:
            return
        self._sized = size is not None and int(size) > 0
        self._until_close = size is None and coding is None
