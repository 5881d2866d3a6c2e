"""The demo's edges: what an engine says of itself, and what a refusal says to the person who started it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.core.errors import DependencyError
from app.stack.addresses import Addresses
from app.stack.board import Progress
from app.stack.control_client import ControlClient
from app.stack.data_dir import Credentials, DataDir
from app.stack.demo import PRICES, Demo, Engine, discover
from app.stack.program import our_environment, python
from app.stack.steps import run_to_end


class Answers(BaseHTTPRequestHandler):
    """Answers each `METHOD path` from a table and keeps what it was sent."""

    def do_GET(self) -> None:
        self.answer("GET")

    def do_POST(self) -> None:
        self.answer("POST")

    def answer(self, method: str) -> None:
        server: Any = self.server
        sent = self.rfile.read(int(self.headers.get("content-length", 0)))
        server.sent.append((method, self.path, json.loads(sent or b"null")))
        status, body = server.table.get(f"{method} {self.path}", (404, {"error": {"code": "not_found"}}))
        payload = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, *_: object) -> None:
        pass


class Peer(ThreadingHTTPServer):
    """An engine or a control API as the wire sees it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.table: dict[str, tuple[int, Any]] = {}
        self.sent: list[tuple[str, str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@pytest.fixture
def peer() -> Iterator[Peer]:
    server = Peer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("served", "expected"),
    [
        ({"id": "qwen", "owned_by": "vllm", "max_model_len": 32768}, ("vllm", "qwen", 32768)),
        ({"id": "smol", "owned_by": "llamacpp", "meta": {"n_ctx": 4096}}, ("llama-server", "smol", 4096)),
        ({"id": "other"}, ("openai", "other", 8192)),
    ],
)
async def test_an_engine_is_known_by_its_own_list_of_models(
    peer: Peer, served: dict[str, Any], expected: tuple[str, str, int]
) -> None:
    peer.table["GET /v1/models"] = (200, {"data": [served]})
    engine = await discover(Engine(peer.url))
    assert (engine.kind, engine.model, engine.context) == expected


async def test_an_engine_that_does_not_answer_is_named_with_a_way_to_look(peer: Peer) -> None:
    with pytest.raises(DependencyError, match=r"(?s)does not tell its models.*try: curl"):
        await discover(Engine(peer.url))


async def test_a_list_is_read_to_its_end_and_a_known_row_is_not_made_again(peer: Peer) -> None:
    peer.table["GET /things?limit=200"] = (200, {"data": [{"name": "a"}], "has_more": True, "next": "c"})
    peer.table["GET /things?limit=200&after=c"] = (200, {"data": [{"name": "b"}], "has_more": False})
    async with httpx.AsyncClient(base_url=peer.url) as http:
        assert await ControlClient(http).ensure("/things", {"name": "b"}) == {"name": "b"}
    assert [method for method, _, _ in peer.sent] == ["GET", "GET"]


async def test_a_refusal_of_the_api_is_passed_on_in_its_own_words(peer: Peer) -> None:
    peer.table["POST /things"] = (409, {"error": {"code": "conflict"}})
    async with httpx.AsyncClient(base_url=peer.url) as http:
        with pytest.raises(DependencyError, match=r"POST /things was refused with 409: .*conflict"):
            await ControlClient(http).post("/things", {})


async def test_the_check_waits_until_the_gateway_knows_key_and_model(peer: Peer, tmp_path: Path) -> None:
    data = DataDir(tmp_path)
    data.write_credentials(Credentials("a@b", "word", api_key="sk-sy-1", model="tiny"))
    peer.table["GET /v1/models"] = (200, {"data": [{"id": "tiny"}]})
    demo = Demo(data, Addresses(peer.server_address[1], 1), engine=Engine(peer.url), environment={})
    assert "serves" in await demo.check()


async def test_an_operator_once_made_is_not_made_again(tmp_path: Path) -> None:
    data = DataDir(tmp_path)
    kept = Credentials("a@b", "word", token="sya_kept", api_key="sk-sy-1")
    data.write_credentials(kept)
    demo = Demo(data, Addresses(9000, 1), engine=Engine("http://127.0.0.1:1"), environment={})
    assert await demo.make_admin() == "as before"
    found = data.read_credentials()
    assert found is not None
    assert (found.token, found.api_key, found.gateway_url) == ("sya_kept", "sk-sy-1", "http://127.0.0.1:9000")


def test_a_price_is_given_for_every_meter() -> None:
    assert set(PRICES) == {"input", "input_cached", "input_cache_write", "output"}


async def test_a_step_tells_its_progress_and_returns_what_it_printed(tmp_path: Path) -> None:
    seen: list[Progress] = []
    go = tmp_path / "go"
    os.mkfifo(go)
    waiting = f"print('5 10 half way', flush=True); open('{go}').read()"

    def report(progress: Progress) -> None:
        if not seen:
            go.write_text("go")
        seen.append(progress)

    command = [python()[0], "-c", waiting]
    output = await run_to_end(
        command, environment=our_environment(), logs=tmp_path, name="step", report=report
    )
    assert output == "5 10 half way\n"
    assert seen[0] == (5, 10, "half way")


async def test_a_failed_step_raises_its_last_words(tmp_path: Path) -> None:
    command = [python()[0], "-c", "import sys; sys.exit('no disk')"]
    with pytest.raises(DependencyError, match="no disk"):
        await run_to_end(command, environment=our_environment(), logs=tmp_path, name="step")
