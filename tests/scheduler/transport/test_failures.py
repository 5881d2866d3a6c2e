"""Engines that refuse, stall, die and lie: each exchange ends in one error that says what happened."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.core.errors import ConnectFailed, EngineError, FirstTokenTimeout, StreamBroken
from scheduler.transport.client import EngineClient
from scheduler.transport.model import Deadlines, EngineRequest, Limits, Target
from tests.scheduler.transport.peers import (
    CHUNKED,
    OK,
    PATIENT,
    Peer,
    Recorder,
    Script,
    answering,
    engine,
    free_port,
    post,
)


def within(**seconds: float) -> Deadlines:
    values = {"connect_s": 10.0, "first_byte_s": 10.0, "idle_s": 10.0, "total_s": 30.0}
    return Deadlines(**(values | seconds))


async def fail(
    client: EngineClient, target: Target, *, deadlines: Deadlines = PATIENT, body: bytes = b"{}"
) -> EngineError:
    sink = Recorder()
    exchange = client.send(target, post(body), deadlines=deadlines, sink=sink)
    error = await sink.broken()
    assert exchange.done
    assert set(error.facts) >= {"phase", "host", "port", "elapsed_ms", "bytes_received", "response_started"}
    assert error.facts["bytes_received"] == len(sink.body)
    assert target.host not in error.public_message
    assert str(target.port) not in error.public_message
    return error


def silent_after(raw: bytes) -> Script:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(raw)
        await peer.gone()

    return script


async def test_a_refused_connection_is_a_failed_connect(client: EngineClient) -> None:
    error = await fail(client, Target("127.0.0.1", free_port()))
    assert isinstance(error, ConnectFailed)
    assert error.facts["phase"] == "connect"


async def test_an_unknown_name_is_a_failed_connect(client: EngineClient) -> None:
    for name in ("engine.invalid", "a" * 70 + ".invalid"):
        assert isinstance(await fail(client, Target(name, 8000)), ConnectFailed)


@pytest.fixture
def deaf_port() -> Iterator[int]:
    """A port whose backlog is full: the kernel ignores who knocks."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        callers = [socket.socket() for _ in range(3)]
        for caller in callers:
            caller.setblocking(False)
            caller.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]
        for caller in callers:
            caller.close()


@pytest.mark.parametrize("deadlines", [within(connect_s=0.1), within(total_s=0.1)])
async def test_a_slow_connect_is_a_failed_connect(
    client: EngineClient, deaf_port: int, deadlines: Deadlines
) -> None:
    error = await fail(client, Target("127.0.0.1", deaf_port), deadlines=deadlines)
    assert isinstance(error, ConnectFailed)
    assert "deadline" in error.facts["reason"]


@pytest.mark.parametrize(
    "raw", [b"", b"HTTP/1.1 200 OK\r\n", CHUNKED, CHUNKED + b"2;ext=", b"HTTP/1.1 100 Continue\r\n\r\n"]
)
async def test_a_head_alone_is_no_first_token(client: EngineClient, raw: bytes) -> None:
    async with engine(silent_after(raw)) as seen:
        error = await fail(client, seen.target, deadlines=within(first_byte_s=0.1))
    assert isinstance(error, FirstTokenTimeout)
    assert error.facts["phase"] == "first_byte"


async def test_a_silent_engine_meets_the_total_deadline(client: EngineClient) -> None:
    async with engine(silent_after(CHUNKED)) as seen:
        error = await fail(client, seen.target, deadlines=within(total_s=0.1))
    assert isinstance(error, FirstTokenTimeout)
    assert error.facts["reason"] == "total deadline"


@pytest.mark.parametrize("raw", [CHUNKED + b"2\r\nhi\r\n", b"HTTP/1.1 500 Oops\r\ncontent-length: 9\r\n\r\n"])
async def test_silence_within_an_answer_breaks_it(client: EngineClient, raw: bytes) -> None:
    async with engine(silent_after(raw)) as seen:
        error = await fail(client, seen.target, deadlines=within(idle_s=0.1))
    assert isinstance(error, StreamBroken)
    assert error.facts["reason"] == "idle deadline"


async def test_bytes_that_are_no_body_do_not_count_as_life(client: EngineClient) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED + b"2\r\nhi\r\n2;ext=")
        while True:
            await peer.send(b"x")
            await asyncio.sleep(0.01)

    async with engine(script) as seen:
        error = await fail(client, seen.target, deadlines=within(idle_s=0.15))
    assert (error.facts["reason"], error.facts["bytes_received"]) == ("idle deadline", 2)


async def test_an_endless_stream_meets_the_total_deadline(client: EngineClient) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED)
        while True:
            await peer.send(b"2\r\nhi\r\n")
            await asyncio.sleep(0.01)

    async with engine(script) as seen:
        error = await fail(client, seen.target, deadlines=within(idle_s=0.5, total_s=1))
    assert isinstance(error, StreamBroken)
    assert error.facts["reason"] == "total deadline"


@pytest.mark.parametrize("raw", [b"", CHUNKED + b"2\r\nhi\r\n"])
async def test_only_the_total_deadline_runs_while_paused(client: EngineClient, raw: bytes) -> None:
    async with engine(silent_after(raw)) as seen:
        sink = Recorder()
        deadlines = within(first_byte_s=0.4, idle_s=0.4, total_s=1)
        exchange = client.send(seen.target, post(), deadlines=deadlines, sink=sink)
        if raw:
            await sink.heard.wait()
        exchange.pause()
        assert (await sink.broken()).facts["reason"] == "total deadline"


@pytest.mark.parametrize("raw", [b"", CHUNKED + b"2\r\nhi\r\n"])
async def test_resuming_starts_the_wait_anew(client: EngineClient, raw: bytes) -> None:
    async with engine(silent_after(raw)) as seen:
        sink = Recorder()
        exchange = client.send(seen.target, post(), deadlines=within(first_byte_s=0.2, idle_s=0.2), sink=sink)
        exchange.pause()
        exchange.resume()
        assert (await sink.broken()).facts["phase"] == ("body" if raw else "first_byte")


async def test_an_engine_that_stops_reading_a_large_request_is_given_up(client: EngineClient) -> None:
    async def script(peer: Peer) -> None:
        peer.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await asyncio.Event().wait()

    async with engine(script) as seen:
        error = await fail(client, seen.target, deadlines=within(idle_s=0.2), body=bytes(64_000_000))
    assert isinstance(error, FirstTokenTimeout)
    assert error.facts["phase"] == "send"


async def test_a_fresh_connection_closed_without_an_answer_is_a_broken_stream(client: EngineClient) -> None:
    async with engine(answering(b"")) as seen:
        error = await fail(client, seen.target)
        assert seen.connections == 1
    assert isinstance(error, StreamBroken)
    assert error.facts["response_started"] is False


async def test_a_connection_reset_before_the_whole_request_is_a_failed_connect(client: EngineClient) -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        peer.reset()

    async with engine(script) as seen:
        error = await fail(client, seen.target, body=bytes(64_000_000))
    assert isinstance(error, ConnectFailed)
    assert error.facts["phase"] == "send"


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\ncontent-le",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhell",
        CHUNKED,
        CHUNKED + b"5\r\nhel",
        CHUNKED + b"5\r\nhello\r\n",
        CHUNKED + b"5\r\nhello\r\n0\r\n",
        CHUNKED + b"5\r\nhello\r\n0\r\nx: y\r\n",
    ],
)
async def test_a_shortened_answer_is_never_an_end(client: EngineClient, raw: bytes, *, reset: bool) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(raw)
        if reset:
            peer.reset()

    async with engine(script) as seen:
        error = await fail(client, seen.target)
    assert isinstance(error, StreamBroken)


async def test_a_reset_is_no_end_of_a_body_without_length(client: EngineClient) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\n\r\ndata: 1\n\n")
        await heard.wait()
        peer.reset()

    heard = asyncio.Event()
    async with engine(script) as seen:
        sink = Recorder(heard=heard)
        client.send(seen.target, post(), deadlines=PATIENT, sink=sink)
        assert isinstance(await sink.broken(), StreamBroken)


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nhi",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"220 smtp.example ESMTP\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 5000,
    ],
)
async def test_what_is_no_http_breaks_the_stream_at_once(raw: bytes) -> None:
    client = EngineClient(limits=Limits(head_bytes=4000))
    async with engine(silent_after(raw)) as seen:
        error = await fail(client, seen.target)
        await client.close()
    assert isinstance(error, StreamBroken)
    assert error.facts["response_started"] is True


async def test_a_fault_behind_good_bytes_delivers_the_good_ones_first(client: EngineClient) -> None:
    async with engine(silent_after(CHUNKED + b"2\r\nhi\r\nzz")) as seen:
        sink = Recorder()
        client.send(seen.target, post(), deadlines=PATIENT, sink=sink)
        await sink.broken()
    assert (sink.status, sink.body) == (200, b"hi")


class Broken(Recorder):
    """A sink with a defect."""

    def piece(self, data: bytes) -> None:
        super().piece(data)
        raise RuntimeError("a defect of the sink")


async def test_a_sink_that_raises_loses_its_connection_and_is_reported(client: EngineClient) -> None:
    reports: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
    async with engine(silent_after(CHUNKED + b"2\r\nhi\r\n")) as seen:
        sink = Broken()
        client.send(seen.target, post(), deadlines=PATIENT, sink=sink)
        assert isinstance(await sink.broken(), StreamBroken)
    assert [str(report["exception"]) for report in reports] == ["a defect of the sink"]


FRAGMENTS = st.sampled_from(
    [OK, CHUNKED, b"2\r\nhi\r\n", b"0\r\n\r\n", b"\r\n", b"HTTP/1.1 200 OK\r\n", b"x: y\r\n"]
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(FRAGMENTS | st.binary(min_size=1, max_size=20), max_size=8), reset=st.booleans())
async def test_whatever_an_engine_says_an_exchange_ends_once(
    client: EngineClient, parts: list[bytes], *, reset: bool
) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        for part in parts:
            await peer.send(part)
            await asyncio.sleep(0)
        if reset:
            peer.reset()

    async with engine(script) as seen:
        sink = Recorder()
        client.send(seen.target, EngineRequest("POST", "/", (), b""), deadlines=PATIENT, sink=sink)
        await sink.over.wait()
        assert sink.ended is (sink.failure is None)
