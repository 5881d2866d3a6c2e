"""A control API that answers from a table and remembers what it was asked: a fake at the wire."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Asked:
    """One call that came."""

    method: str
    path: str
    body: Any
    token: str | None
    idempotency_key: str | None


@dataclass
class FakeControl:
    """answers: `"GET /path"` (below /api/v1, with its query if it matters) → (status, JSON or bytes)."""

    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    url: str = ""

    def gives(self, call: str, answer: Any, *, status: int = 200) -> None:
        self.answers[call] = (status, answer)

    def lists(self, path: str, *rows: dict[str, Any]) -> None:
        self.gives(f"GET {path}", {"data": list(rows), "has_more": False, "next": None})

    def refuses(self, call: str, *, status: int, code: str, **facts: Any) -> None:
        error = {"code": code, "message": f"it is {code}", "request_id": "req_1", **facts}
        self.gives(call, {"error": error}, status=status)

    def find(self, method: str, path: str) -> tuple[int, Any]:
        bare = path.partition("?")[0]
        missing = (
            404,
            {"error": {"code": "route_unknown", "message": f"{method} {path}", "request_id": None}},
        )
        return self.answers.get(f"{method} {path}") or self.answers.get(f"{method} {bare}") or missing


@contextmanager
def serve() -> Iterator[FakeControl]:
    """The fake on a free port of the loopback, until the end of the block."""
    control = FakeControl()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            path = self.path.removeprefix("/api/v1")
            token, key = self.headers.get("authorization"), self.headers.get("idempotency-key")
            control.asked.append(Asked(self.command, path, body, token, key))
            status, answer = control.find(self.command, path)
            content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Quiet: tests read what was asked."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    control.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield control
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
