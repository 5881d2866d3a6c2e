"""TLS to engines: verified, or not at all. The certificates are made by the `openssl` command."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from app.core.errors import ConnectFailed, StreamBroken
from scheduler.transport.client import EngineClient
from scheduler.transport.model import Deadlines, Target
from tests.scheduler.transport.peers import OK, PATIENT, Peer, Recorder, answering, engine, post, until


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `cert.pem` (for engine.test and 127.0.0.1) and `key.pem`."""
    folder = tmp_path_factory.mktemp("tls")
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
        " -subj /CN=engine.test -addext subjectAltName=DNS:engine.test,IP:127.0.0.1"
        " -keyout key.pem -out cert.pem"
    )
    subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture
def server_side(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    return context


def trusting(target: Target, certificate: Path) -> Target:
    return replace(target, ca_file=str(certificate / "cert.pem"))


async def test_a_verified_engine_is_spoken_to_and_its_connection_kept(
    client: EngineClient, certificate: Path, server_side: ssl.SSLContext
) -> None:
    async with engine(answering(OK, OK), ssl=server_side, tls=True) as seen:
        for used in (False, True):
            sink = Recorder()
            exchange = client.send(trusting(seen.target, certificate), post(), deadlines=PATIENT, sink=sink)
            assert await sink.answer() == b"hi"
            assert exchange.reused is used


async def test_the_expected_name_may_differ_from_the_address(
    client: EngineClient, certificate: Path, server_side: ssl.SSLContext
) -> None:
    async with engine(answering(OK), ssl=server_side, tls=True) as seen:
        sink = Recorder()
        target = replace(trusting(seen.target, certificate), server_name="engine.test")
        client.send(target, post(), deadlines=PATIENT, sink=sink)
        assert await sink.answer() == b"hi"


@pytest.mark.parametrize("case", ["unknown authority", "other name", "no such file", "plain text"])
async def test_an_engine_that_cannot_be_verified_gets_no_request(
    client: EngineClient, certificate: Path, server_side: ssl.SSLContext, case: str
) -> None:
    async def script(peer: Peer) -> None:
        asked.append(await peer.reader.read(100))

    asked: list[bytes] = []
    side = None if case == "plain text" else server_side
    async with engine(script, ssl=side, tls=True) as seen:
        target = trusting(seen.target, certificate)
        if case == "unknown authority":
            target = seen.target
        elif case == "other name":
            target = replace(target, server_name="other.test")
        elif case == "no such file":
            target = replace(target, ca_file="missing.pem")
        sink = Recorder()
        client.send(target, post(), deadlines=PATIENT, sink=sink)
        error = await sink.broken()
    assert isinstance(error, ConnectFailed)
    assert error.facts["phase"] == "connect"
    assert not any(b"POST" in data for data in asked)


async def test_a_stalled_handshake_is_a_failed_connect(client: EngineClient) -> None:
    async def script(peer: Peer) -> None:
        await peer.gone()

    async with engine(script, tls=True) as seen:
        sink = Recorder()
        deadlines = Deadlines(connect_s=0.1, first_byte_s=10, idle_s=10, total_s=30)
        client.send(seen.target, post(), deadlines=deadlines, sink=sink)
        assert isinstance(await sink.broken(), ConnectFailed)
        await until(lambda: client.connections == 0)


@pytest.mark.parametrize("close_notify", [True, False])
async def test_without_a_length_only_an_announced_close_is_an_end(
    client: EngineClient, certificate: Path, server_side: ssl.SSLContext, *, close_notify: bool
) -> None:
    heard = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.0 200 OK\r\n\r\ndata: 1\n\n")
        await heard.wait()
        if not close_notify:
            peer.writer.transport.abort()  # what an attacker on the wire can do: end TCP, not TLS

    async with engine(script, ssl=server_side, tls=True) as seen:
        sink = Recorder(heard=heard)
        client.send(trusting(seen.target, certificate), post(), deadlines=PATIENT, sink=sink)
        if close_notify:
            assert await sink.answer() == b"data: 1\n\n"
        else:
            assert isinstance(await sink.broken(), StreamBroken)


async def test_large_bodies_pass_through_tls_under_pressure(
    client: EngineClient, certificate: Path, server_side: ssl.SSLContext
) -> None:
    body = bytes(range(256)) * 16_000

    async def script(peer: Peer) -> None:
        _, got = await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(got) + got)

    async with engine(script, ssl=server_side, tls=True) as seen:
        sink = Recorder()
        exchange = client.send(trusting(seen.target, certificate), post(body), deadlines=PATIENT, sink=sink)
        await sink.heard.wait()
        exchange.pause()
        exchange.resume()
        assert await sink.answer() == body
