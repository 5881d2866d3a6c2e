"""Real servers on the other side: uvicorn, on which vLLM stands, and nginx, behind which engines hide."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.core.errors import ConnectFailed, StreamBroken
from scheduler.transport.client import EngineClient
from scheduler.transport.model import EngineRequest, Limits, Target
from tests.scheduler.transport.peers import CHUNKED, PATIENT, Peer, Recorder, engine, free_port, post, until

ROOT = Path(__file__).parents[3]


@asynccontextmanager
async def running(*command: str, target: Target) -> AsyncIterator[Target]:
    """A server process, from its first answer on until the end of the block."""
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=quiet, stderr=quiet)
    client = EngineClient()
    try:
        while True:
            assert process.returncode is None, f"{command[0]} has exited with {process.returncode}"
            sink = Recorder()
            client.send(target, EngineRequest("GET", "/", (), b""), deadlines=PATIENT, sink=sink)
            await sink.over.wait()
            if sink.ended:
                break
            assert isinstance(sink.failure, ConnectFailed | StreamBroken)
            await asyncio.sleep(0.05)
        yield target
    finally:
        await client.close()
        process.terminate()
        await process.wait()


@pytest.fixture
async def uvicorn() -> AsyncIterator[Target]:
    port = free_port()
    arguments = (
        f"-m uvicorn tests.scheduler.transport.app:app --port {port} --timeout-keep-alive 1 --http httptools"
    )
    async with running(sys.executable, *arguments.split(), target=Target("127.0.0.1", port)) as target:
        yield target


async def ask(client: EngineClient, target: Target, path: str, body: bytes = b"{}") -> Recorder:
    sink = Recorder()
    client.send(target, post(body, path=path), deadlines=PATIENT, sink=sink)
    await sink.over.wait()
    return sink


async def test_uvicorn_is_understood(uvicorn: Target) -> None:
    client = EngineClient(limits=Limits(idle_s=60))
    assert (await ask(client, uvicorn, "/echo", b"x" * 300_000)).body == b"x" * 300_000
    assert (await ask(client, uvicorn, "/stream")).body == b"".join(b"data: %d\n\n" % n for n in range(50))
    assert client.connections == 1

    early = await ask(client, uvicorn, "/early", bytes(20_000_000))
    assert (early.status, early.body, early.ended) == (413, b"too large", True)

    died = await ask(client, uvicorn, "/die")
    assert (died.body, type(died.failure)) == (b"data: 1\n\n", StreamBroken)

    endless = Recorder()
    exchange = client.send(uvicorn, post(path="/endless"), deadlines=PATIENT, sink=endless)
    await until(lambda: endless.body != b"")
    exchange.cancel()
    while (await ask(client, uvicorn, "/aborted")).body != b"1":
        await asyncio.sleep(0.01)

    # Now uvicorn closes what idles, long before we would.
    await until(lambda: client.connections == 0)
    assert (await ask(client, uvicorn, "/echo")).body == b"{}"
    await client.close()


def nginx_command(folder: Path, *, port: int, upstream: int) -> list[str]:
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    assert program, "this test needs nginx: `apt-get install -y nginx-light` (or `brew install nginx`)"
    temporary = "".join(
        f"{kind}_temp_path {folder / kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"""
        daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/error.log;
        events {{ worker_connections 64; }}
        http {{
            access_log off; {temporary} client_max_body_size 64m; keepalive_requests 3;
            server {{
                listen 127.0.0.1:{port};
                location = / {{ return 200 "ready"; }}
                location /v1/ {{
                    proxy_pass http://127.0.0.1:{upstream};
                    proxy_http_version 1.1; proxy_set_header Connection "";
                    proxy_buffering off; proxy_request_buffering off;
                }}
            }}
        }}
        """
    )
    return [program, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]


@pytest.mark.peer
async def test_an_engine_behind_nginx_is_understood(client: EngineClient, tmp_path: Path) -> None:
    left = asyncio.Event()

    async def script(peer: Peer) -> None:
        while True:
            head, body = await peer.request()
            path = head.split(b" ")[1]
            if path == b"/v1/echo":
                await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            elif path == b"/v1/stream":
                await peer.send(CHUNKED + b"9\r\ndata: 1\n\n\r\n" * 100 + b"0\r\n\r\n")
            else:
                await peer.send(CHUNKED + b"9\r\ndata: 1\n\n\r\n")
                if path == b"/v1/die":
                    return
                await peer.gone()
                left.set()

    async with engine(script) as seen:
        port = free_port()
        command = nginx_command(tmp_path, port=port, upstream=seen.target.port)
        async with running(*command, target=Target("127.0.0.1", port)) as target:
            for _ in range(8):  # across nginx's own limit of requests a connection
                assert (await ask(client, target, "/v1/echo", b"x" * 100_000)).body == b"x" * 100_000
                assert (await ask(client, target, "/v1/stream")).body == b"data: 1\n\n" * 100

            died = await ask(client, target, "/v1/die")
            assert (died.body, type(died.failure)) == (b"data: 1\n\n", StreamBroken)

            endless = Recorder()
            exchange = client.send(target, post(path="/v1/endless"), deadlines=PATIENT, sink=endless)
            await until(lambda: endless.body != b"")
            exchange.cancel()
            await left.wait()
