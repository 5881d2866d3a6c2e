"""Reuse of connections: warm ones are kept, dead ones are never used, stale ones cost no request."""

from __future__ import annotations

import asyncio

import pytest

from app.core.errors import ConnectFailed, StreamBroken
from scheduler.transport.client import EngineClient
from scheduler.transport.model import Limits, Target
from tests.scheduler.transport.peers import (
    CHUNKED,
    OK,
    PATIENT,
    Engine,
    Peer,
    Recorder,
    Script,
    answering,
    engine,
    post,
    until,
)

STREAM = CHUNKED + b"2\r\nhi\r\n0\r\n\r\n"


async def ask(client: EngineClient, target: Target) -> bool:
    """Do one exchange that must succeed; True if its connection was a used one."""
    sink = Recorder()
    exchange = client.send(target, post(), deadlines=PATIENT, sink=sink)
    assert await sink.answer() == b"hi"
    return exchange.reused


async def served(peer: Peer) -> None:
    """Answer forever."""
    while True:
        await peer.request()
        await peer.send(OK)


@pytest.mark.parametrize("raw", [OK, STREAM])
async def test_a_connection_is_used_again(client: EngineClient, raw: bytes) -> None:
    async with engine(answering(*[raw] * 5)) as seen:
        assert [await ask(client, seen.target) for _ in range(5)] == [False] + [True] * 4
        assert seen.connections == 1


async def test_the_end_of_one_exchange_may_start_the_next_on_its_connection(client: EngineClient) -> None:
    class Again(Recorder):
        def end(self) -> None:
            super().end()
            client.send(seen.target, post(), deadlines=PATIENT, sink=second)

    async with engine(served) as seen:
        second = Recorder()
        client.send(seen.target, post(), deadlines=PATIENT, sink=Again())
        await second.answer()
        assert seen.connections == 1


async def test_an_exchange_paused_at_its_end_leaves_a_reading_connection(client: EngineClient) -> None:
    class Pausing(Recorder):
        def piece(self, data: bytes) -> None:
            super().piece(data)
            exchange.pause()

    async with engine(served) as seen:
        sink = Pausing()
        exchange = client.send(seen.target, post(), deadlines=PATIENT, sink=sink)
        await sink.answer()
        assert await ask(client, seen.target)


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi",
        OK + b"\r\n",
        OK + OK,
        STREAM + b"\n",
        STREAM + b"HTTP/1.1 200 OK\r\nx: smuggled\r\n",
    ],
)
async def test_a_connection_in_doubt_is_closed_after_its_answer(client: EngineClient, raw: bytes) -> None:
    left = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(raw)
        await peer.gone()
        left.set()

    async with engine(script) as seen:
        assert not await ask(client, seen.target)
        await left.wait()
        assert not await ask(client, seen.target)
        assert seen.connections == 2


async def test_a_byte_on_an_idle_connection_closes_it(client: EngineClient) -> None:
    idle, left = asyncio.Event(), asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await idle.wait()
        await peer.send(OK)  # an answer to a question that nobody asked
        await peer.gone()
        left.set()

    async with engine(script) as seen:
        await ask(client, seen.target)
        idle.set()
        await left.wait()
        await until(lambda: client.connections == 0)
        assert not await ask(client, seen.target)


@pytest.mark.parametrize("reset", [False, True])
async def test_an_idle_connection_that_the_engine_closes_is_dropped(
    client: EngineClient, *, reset: bool
) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        if reset:
            await idle.wait()
            peer.reset()

    idle = asyncio.Event()
    async with engine(script) as seen:
        await ask(client, seen.target)
        idle.set()
        await until(lambda: client.connections == 0)
        assert not await ask(client, seen.target)


def dying_on_second(*, reset: bool, fresh: bytes, requests: list[int]) -> Script:
    """A script whose first connection dies at its second request; later ones answer `fresh`."""

    async def script(peer: Peer) -> None:
        await peer.request()
        requests.append(peer.number)
        await peer.send(OK if peer.number == 1 else fresh)
        if peer.number == 1:
            await peer.request()
            requests.append(peer.number)
            if reset:
                peer.reset()

    return script


@pytest.mark.parametrize("reset", [False, True])
async def test_a_request_on_a_stale_connection_is_sent_once_more(
    client: EngineClient, *, reset: bool
) -> None:
    requests: list[int] = []
    async with engine(dying_on_second(reset=reset, fresh=OK, requests=requests)) as seen:
        await ask(client, seen.target)
        sink = Recorder()
        exchange = client.send(seen.target, post(), deadlines=PATIENT, sink=sink)
        assert await sink.answer() == b"hi"
        assert (exchange.retried, exchange.reused, requests) == (True, False, [1, 1, 2])


async def test_a_request_is_never_sent_a_third_time(client: EngineClient) -> None:
    requests: list[int] = []
    async with engine(dying_on_second(reset=False, fresh=b"", requests=requests)) as seen:
        await ask(client, seen.target)
        sink = Recorder()
        client.send(seen.target, post(), deadlines=PATIENT, sink=sink)
        error = await sink.broken()
        assert isinstance(error, StreamBroken)
        assert (error.facts["retried"], requests) == (True, [1, 1, 2])


async def test_one_byte_of_an_answer_forbids_the_retry(client: EngineClient) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.request()
        await peer.send(b"H")

    async with engine(script) as seen:
        await ask(client, seen.target)
        sink = Recorder()
        client.send(seen.target, post(), deadlines=PATIENT, sink=sink)
        error = await sink.broken()
        assert isinstance(error, StreamBroken)
        assert (error.facts["retried"], error.facts["response_started"], seen.connections) == (False, True, 1)


async def test_cancelling_a_retry_leaves_nothing_behind(client: EngineClient) -> None:
    held: list[Peer] = []

    async def script(peer: Peer) -> None:
        await peer.request()
        if peer.number == 1:
            await peer.send(OK)
            await peer.request()
        else:
            held.append(peer)
            await peer.gone()

    async with engine(script) as seen:
        await ask(client, seen.target)
        sink = Recorder()
        exchange = client.send(seen.target, post(), deadlines=PATIENT, sink=sink)
        await until(lambda: bool(held))
        exchange.cancel()
        await until(lambda: client.connections == 0)
        assert not sink.over.is_set()


async def test_an_idle_connection_grows_old_and_is_closed() -> None:
    client = EngineClient(limits=Limits(idle_s=0.05))
    async with engine(served) as seen:
        for _ in range(2):
            assert not await ask(client, seen.target)
            await until(lambda: client.connections == 0)
        assert seen.connections == 2
        await client.close()


async def test_a_connection_too_old_is_not_used_even_if_still_open() -> None:
    client = EngineClient(limits=Limits(idle_s=0))
    async with engine(served) as seen:
        assert [await ask(client, seen.target) for _ in range(3)] == [False] * 3
        await client.close()


async def gather(client: EngineClient, seen: Engine, *, count: int) -> list[Recorder]:
    sinks = [Recorder() for _ in range(count)]
    for sink in sinks:
        client.send(seen.target, post(), deadlines=PATIENT, sink=sink)
    for sink in sinks:
        await sink.over.wait()
    return sinks


async def test_no_more_than_the_limit_stay_idle() -> None:
    client = EngineClient(limits=Limits(idle_per_target=2))
    async with engine(served) as seen:
        assert all(sink.ended for sink in await gather(client, seen, count=6))
        await until(lambda: client.connections == 2)
        await client.close()


async def test_no_more_than_the_limit_are_opened() -> None:
    client = EngineClient(limits=Limits(connections_per_target=2))
    async with engine(served) as seen:
        sinks = await gather(client, seen, count=5)
        assert [sink.ended for sink in sinks] == [True, True, False, False, False]
        assert all(isinstance(sink.failure, ConnectFailed) for sink in sinks[2:])
        await client.close()


async def test_targets_share_no_connection(client: EngineClient) -> None:
    async with engine(served) as one, engine(served) as other:
        assert [await ask(client, seen.target) for seen in (one, other, one, other)] == [
            False,
            False,
            True,
            True,
        ]


async def test_the_last_connection_given_back_is_the_first_taken(client: EngineClient) -> None:
    order: list[int] = []

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            order.append(peer.number)
            await peer.send(OK)

    async with engine(script) as seen:
        await gather(client, seen, count=3)
        for _ in range(3):
            await ask(client, seen.target)
        assert len(set(order[3:])) == 1
        assert seen.connections == 3
