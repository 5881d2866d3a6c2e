"""Exchanges that go well, and callers that change their mind."""

from __future__ import annotations

import asyncio
import hashlib
import socket

import pytest

from scheduler.transport.client import EngineClient
from scheduler.transport.exchange import Exchange
from scheduler.transport.model import Deadlines, EngineRequest, Target
from tests.scheduler.transport.peers import (
    CHUNKED,
    OK,
    PATIENT,
    Peer,
    Recorder,
    answering,
    engine,
    free_port,
    post,
    until,
)


async def test_an_answer_arrives_with_status_headers_and_body(client: EngineClient) -> None:
    raw = b"HTTP/1.1 200 OK\r\nX-Load: 3\r\nContent-Length: 5\r\n\r\nhello"
    async with engine(answering(raw)) as seen:
        sink = Recorder()
        exchange = client.send(seen.target, post(), deadlines=PATIENT, sink=sink)
        assert await sink.answer() == b"hello"
    assert (sink.status, sink.headers) == (200, [(b"x-load", b"3"), (b"content-length", b"5")])
    assert (exchange.sent, exchange.done, exchange.bytes_received) == (True, True, 5)
    assert exchange.connected_ms is not None
    assert exchange.first_byte_ms is not None
    assert exchange.connected_ms <= exchange.first_byte_ms


async def test_the_engine_gets_the_request_as_it_was_given(client: EngineClient) -> None:
    got: list[tuple[bytes, bytes]] = []

    async def script(peer: Peer) -> None:
        got.append(await peer.request())
        await peer.send(OK)

    async with engine(script) as seen:
        target = Target("127.0.0.1", seen.target.port, base_path="/base")
        sink = Recorder()
        client.send(target, post(b'{"a":1}', path="/v1/x"), deadlines=PATIENT, sink=sink)
        await sink.answer()
    head, body = got[0]
    assert head.startswith(b"POST /base/v1/x HTTP/1.1\r\nhost: 127.0.0.1:%d\r\n" % target.port)
    assert b"\r\naccept-encoding: identity\r\n" in head
    assert body == b'{"a":1}'


async def test_an_error_status_is_an_answer(client: EngineClient) -> None:
    async with engine(answering(b"HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy")) as seen:
        sink = Recorder()
        client.send(seen.target, post(), deadlines=PATIENT, sink=sink)
        assert (await sink.answer(), sink.status) == (b"busy", 503)


async def test_informational_responses_and_trailers_stay_below(client: EngineClient) -> None:
    raw = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + CHUNKED + b"2\r\nhi\r\n0\r\nx-sum: 1\r\n\r\n"
    async with engine(answering(raw)) as seen:
        sink = Recorder()
        client.send(seen.target, post(), deadlines=PATIENT, sink=sink)
        assert (await sink.answer(), sink.status) == (b"hi", 200)
    assert sink.headers == [(b"transfer-encoding", b"chunked")]


@pytest.mark.parametrize(
    ("method", "raw"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n"),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n"),
        ("GET", b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"),
    ],
)
async def test_an_answer_without_body_ends_at_its_head(client: EngineClient, method: str, raw: bytes) -> None:
    async with engine(answering(raw)) as seen:
        sink = Recorder()
        client.send(seen.target, EngineRequest(method, "/health", (), b""), deadlines=PATIENT, sink=sink)
        assert await sink.answer() == b""


async def test_pieces_arrive_as_the_engine_makes_them(client: EngineClient) -> None:
    asked = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED + b"2\r\nhi\r\n")
        await asked.wait()
        await peer.send(b"5\r\nthere\r\n0\r\n\r\n")

    async with engine(script) as seen:
        sink = Recorder()
        client.send(seen.target, post(), deadlines=PATIENT, sink=sink)
        await until(lambda: sink.body == b"hi")
        assert not sink.over.is_set()
        asked.set()
        assert await sink.answer() == b"hithere"


async def test_a_body_without_length_ends_with_an_orderly_close(client: EngineClient) -> None:
    async with engine(answering(b"HTTP/1.0 200 OK\r\n\r\ndata: 1\n\n")) as seen:
        sink = Recorder()
        client.send(seen.target, post(), deadlines=PATIENT, sink=sink)
        assert await sink.answer() == b"data: 1\n\n"


async def test_large_bodies_pass_both_ways_unchanged(client: EngineClient) -> None:
    body = hashlib.shake_256(b"seed").digest(8_000_000)

    async def script(peer: Peer) -> None:
        _, got = await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(got) + got)

    async with engine(script) as seen:
        sink = Recorder()
        client.send(seen.target, post(body), deadlines=PATIENT, sink=sink)
        assert await sink.answer() == body


async def test_a_request_is_sent_only_as_fast_as_the_engine_reads(client: EngineClient) -> None:
    read_on = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await read_on.wait()
        await peer.reader.readexactly(32_000_000)
        await peer.send(OK)

    async with engine(script) as seen:
        sink = Recorder()
        exchange = client.send(seen.target, post(bytes(32_000_000)), deadlines=PATIENT, sink=sink)
        await until(lambda: exchange.connected_ms is not None)
        assert not exchange.sent
        read_on.set()
        await sink.answer()
        assert exchange.sent


async def test_an_answer_before_the_end_of_the_request_is_delivered(client: EngineClient) -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.send(b"HTTP/1.1 413 Too Large\r\ncontent-length: 9\r\n\r\ntoo large")
        await peer.gone()

    async with engine(script) as seen:
        sink = Recorder()
        exchange = client.send(seen.target, post(bytes(32_000_000)), deadlines=PATIENT, sink=sink)
        assert (await sink.answer(), sink.status) == (b"too large", 413)
        assert not exchange.sent
        await until(lambda: client.connections == 0)  # half a request on it: not for reuse


async def test_an_answer_may_begin_while_the_request_is_still_on_its_way(client: EngineClient) -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.send(CHUNKED + b"2\r\nhi\r\n")
        await peer.reader.readexactly(16_000_000)
        await peer.send(b"0\r\n\r\n")
        await peer.gone()

    async with engine(script) as seen:
        sink = Recorder()
        exchange = client.send(seen.target, post(bytes(16_000_000)), deadlines=PATIENT, sink=sink)
        assert await sink.answer() == b"hi"
        assert exchange.sent
        assert client.connections == 1
        await client.close()


async def test_an_ipv6_literal_and_a_name_are_reached(client: EngineClient) -> None:
    async with engine(answering(OK), host="::1") as seen:
        sink = Recorder()
        client.send(seen.target, post(), deadlines=PATIENT, sink=sink)
        assert await sink.answer() == b"hi"
    async with engine(answering(OK)) as seen:
        sink = Recorder()
        client.send(Target("localhost", seen.target.port), post(), deadlines=PATIENT, sink=sink)
        assert await sink.answer() == b"hi"


async def test_the_sink_hears_nothing_before_send_returns(client: EngineClient) -> None:
    async with engine(answering(OK, OK)) as seen:
        for target in (seen.target, seen.target, Target("127.0.0.1", free_port())):
            sink = Recorder()
            client.send(target, post(), deadlines=PATIENT, sink=sink)
            assert not sink.heard.is_set()
            assert not sink.over.is_set()
            await sink.over.wait()


async def test_a_request_that_cannot_be_written_safely_raises(client: EngineClient) -> None:
    request = EngineRequest("POST", "/", ((b"a", b"b\r\nevil: 1"),), b"")
    with pytest.raises(ValueError, match="CR"):
        client.send(Target("127.0.0.1", 1), request, deadlines=PATIENT, sink=Recorder())


async def test_nothing_waits_for_a_fuller_packet(client: EngineClient) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        raw = peer.writer.get_extra_info("socket")
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        await peer.send(OK)

    async with engine(script) as seen:
        sink = Recorder()
        client.send(seen.target, post(), deadlines=PATIENT, sink=sink)
        await sink.answer()


class Fickle(Recorder):
    """A sink that cancels its exchange when it hears `at`."""

    def __init__(self, at: str) -> None:
        super().__init__()
        self.at = at
        self.exchange: Exchange | None = None

    def head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        super().head(status, headers)
        self.leave("head")

    def piece(self, data: bytes) -> None:
        super().piece(data)
        self.leave("piece")

    def leave(self, heard: str) -> None:
        if heard == self.at and self.exchange is not None:
            self.exchange.cancel()


@pytest.mark.parametrize(("at", "body"), [("head", b""), ("piece", b"hi")])
async def test_a_sink_may_cancel_from_within(client: EngineClient, at: str, body: bytes) -> None:
    left = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED + b"2\r\nhi\r\n")
        await peer.gone()
        left.set()

    async with engine(script) as seen:
        sink = Fickle(at)
        sink.exchange = client.send(seen.target, post(), deadlines=PATIENT, sink=sink)
        await left.wait()
        assert (sink.body, sink.over.is_set(), client.connections) == (body, False, 0)


async def test_cancelling_closes_the_connection_and_silences_the_sink(client: EngineClient) -> None:
    left = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED)
        await peer.gone()
        left.set()

    async with engine(script) as seen:
        sink = Recorder()
        exchange = client.send(seen.target, post(), deadlines=PATIENT, sink=sink)
        await sink.heard.wait()
        exchange.cancel()
        exchange.cancel()
        exchange.pause()
        exchange.resume()
        await left.wait()
        await until(lambda: client.connections == 0)
        assert exchange.done
        assert not sink.over.is_set()


async def test_cancelling_while_connecting_leaves_nothing_behind(client: EngineClient) -> None:
    async with engine(answering(OK)) as seen:
        sink = Recorder()
        for _ in range(20):
            client.send(seen.target, post(), deadlines=PATIENT, sink=sink).cancel()
        other = Recorder()
        client.send(seen.target, post(), deadlines=PATIENT, sink=other)
        await other.answer()
        await until(lambda: client.connections == 0)
        assert not sink.over.is_set()


async def test_a_paused_exchange_stops_the_engine_and_loses_nothing(client: EngineClient) -> None:
    size, blocked = 64_000_000, asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        for _ in range(size // 64_000):
            peer.writer.write(bytes(64_000))
            draining = asyncio.ensure_future(peer.writer.drain())
            while not (await asyncio.wait([draining], timeout=0.2))[0]:
                blocked.set()
            await draining

    async with engine(script) as seen:
        sink = Recorder()
        exchange = client.send(seen.target, post(), deadlines=PATIENT, sink=sink)
        exchange.pause()
        await blocked.wait()
        assert (sink.status, exchange.bytes_received) == (0, 0)
        exchange.resume()
        await sink.heard.wait()
        exchange.pause()
        blocked.clear()
        before = exchange.bytes_received
        await blocked.wait()
        assert exchange.bytes_received - before <= 512 * 1024  # what was read before the pause took hold
        exchange.resume()
        await sink.over.wait()
        assert (sink.ended, exchange.bytes_received) == (True, size)


async def test_closing_fails_what_runs_and_refuses_what_comes() -> None:
    client = EngineClient()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED)
        await peer.gone()

    async with engine(script) as seen:
        running, late = Recorder(), Recorder()
        client.send(seen.target, post(), deadlines=PATIENT, sink=running)
        await running.heard.wait()
        await client.close()
        await client.close()
        assert (await running.broken()).facts["reason"] == "client closed"
        client.send(seen.target, post(), deadlines=PATIENT, sink=late)
        assert (await late.broken()).code == "engine_unreachable"
        assert client.connections == 0


async def test_thousands_of_deadlines_need_no_timer_each(client: EngineClient) -> None:
    deadlines = Deadlines(connect_s=10, first_byte_s=10, idle_s=10, total_s=10)
    async with engine(answering(*[OK] * 50)) as seen:
        sinks = [Recorder() for _ in range(50)]
        for sink in sinks:
            client.send(seen.target, post(), deadlines=deadlines, sink=sink)
        assert [await sink.answer() for sink in sinks] == [b"hi"] * 50
