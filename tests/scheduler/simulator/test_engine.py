from __future__ import annotations

import asyncio
import re

import msgspec
import pytest

from app.core.errors import ConnectFailed, FirstTokenTimeout, StreamBroken
from scheduler.simulator.model import Fault, FaultKind
from scheduler.transport.client import EngineClient
from scheduler.transport.model import EngineRequest, parse_target
from tests.scheduler.engines import HASTY, PATIENT, Answer, chat, running, until

STATS = EngineRequest("GET", "/simulator/stats", (), b"")
USAGE = {"include_usage": True}


def posted(path: str, **fields: object) -> EngineRequest:
    return EngineRequest("POST", path, (), msgspec.json.encode(fields))


async def test_it_says_plainly_that_it_is_simulated() -> None:
    async with running() as (_, ask):
        answer = await ask(EngineRequest("GET", "/version", (), b""))
        assert answer.json == {"version": "steelyard-simulator"}
        assert answer.headers[b"server"] == b"steelyard-simulator"


async def test_the_same_request_gets_the_same_text_streamed_or_not() -> None:
    async with running(multibyte=True) as (_, ask):
        whole = await ask(chat(max_tokens=30))
        stream = await ask(chat(max_tokens=30, stream=True, knobs="tokens_per_chunk=7"))
    text = whole.json["choices"][0]["message"]["content"]
    assert "秤" in text
    assert "👩‍⚖️" in text
    deltas = [e["choices"][0]["delta"].get("content", "") for e in stream.events[:-1]]
    assert "".join(deltas) == text
    assert len(deltas) == 1 + 5


async def test_its_counters_tell_what_was_generated_for_each_request() -> None:
    async with running() as (_, ask):
        one = await ask(chat(max_tokens=5, request_id="one", stream=True, stream_options=USAGE))
        await ask(chat(max_tokens=7, n=2, request_id="two", knobs="tokens=3"))
        stats = (await ask(STATS)).json
        metrics = (await ask(EngineRequest("GET", "/metrics", (), b""))).body.decode()
    assert one.events[0]["id"] == "chatcmpl-one"
    assert (stats["generated_tokens"], stats["completed"], stats["running"]) == (11, 2, 0)
    assert {k: (v["generated_tokens"], v["outcome"]) for k, v in stats["requests"].items()} == {
        "one": (5, "length"),
        "two": (6, "stop"),
    }
    usage = one.events[-2]["usage"]
    assert usage["prompt_tokens"] == stats["requests"]["one"]["prompt_tokens"]
    assert 'vllm:generation_tokens_total{engine="0",model_name="simulated"} 11.0' in metrics


async def test_a_client_that_leaves_aborts_its_request() -> None:
    async with running(chunk_ms=5) as (engine, _):
        client, answer = EngineClient(), Answer()
        request = chat(max_tokens=30_000, stream=True)
        exchange = client.send(parse_target(engine.base_url), request, deadlines=PATIENT, sink=answer)
        await answer.begun.wait()
        exchange.cancel()
        await until(lambda: engine.stats.outcomes["abort"] == 1)
        assert engine.stats.running == 0
        assert 0 <= engine.stats.generated_tokens < 30_000
        await client.close()


async def test_a_client_that_stops_reading_stops_the_generation() -> None:
    async with running(max_model_len=10_000_000) as (engine, _):
        client, answer = EngineClient(), Answer()
        request = chat(max_tokens=1_000_000, stream=True)
        exchange = client.send(parse_target(engine.base_url), request, deadlines=PATIENT, sink=answer)
        await answer.begun.wait()
        exchange.pause()
        seen = -1
        while seen != engine.stats.generated_tokens:
            seen = engine.stats.generated_tokens
            for _ in range(20):
                await asyncio.sleep(0.002)
        assert seen < 1_000_000
        exchange.resume()
        await until(lambda: engine.stats.generated_tokens > seen)
        exchange.cancel()
        await client.close()


BROKEN = {
    "reset": StreamBroken,
    "die:0": StreamBroken,
    "die:2": StreamBroken,
    "hang": FirstTokenTimeout,
    "hang_after_head": FirstTokenTimeout,
    "stall:2": StreamBroken,
}


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("fault", BROKEN)
async def test_a_fault_looks_on_the_wire_like_what_it_plays(fault: str, stream: bool) -> None:
    async with running() as (engine, ask):
        answer = await ask(chat(stream=stream, knobs=f"fault={fault}"), deadlines=HASTY)
        assert isinstance(answer.error_found, BROKEN[fault])
        whole = await ask(chat(stream=stream))
        assert (whole.status, whole.error_found) == (200, None)
        await until(lambda: engine.stats.running == 0)


async def test_usage_can_be_missing_or_come_twice() -> None:
    async with running() as (_, ask):
        request = {"stream": True, "stream_options": USAGE}
        none = await ask(chat(knobs="fault=no_usage", **request))
        twice = await ask(chat(knobs="fault=double_usage", **request))
    assert [e for e in none.events if "usage" in e] == []
    first, second = (e["usage"] for e in twice.events if "usage" in e)
    assert first["completion_tokens"] == second["completion_tokens"] == 8
    assert "prompt_tokens_details" not in first
    assert second["prompt_tokens_details"]["cached_tokens"] == 0


async def test_a_fault_can_be_set_and_lifted_while_it_runs() -> None:
    async with running() as (_, ask):
        statuses = []
        for fault in ("status:500", "dead", None):
            await ask(posted("/simulator/fault", fault=fault))
            health = await ask(EngineRequest("GET", "/health", (), b""))
            statuses.append(((await ask(chat())).status, health.status))
    assert statuses == [(500, 200), (500, 503), (200, 200)]


async def test_a_fault_can_strike_every_third_request_only() -> None:
    async with running(fault=Fault(FaultKind.STATUS, 503), fault_every=3) as (_, ask):
        assert [(await ask(chat())).status for _ in range(6)] == [200, 200, 503, 200, 200, 503]


async def test_it_refuses_connections_for_a_while_and_returns_on_the_same_port() -> None:
    async with running() as (engine, ask):
        await engine.stop()
        answer = await ask(chat(), deadlines=HASTY)
        assert isinstance(answer.error_found, ConnectFailed)
        await engine.start()
        assert (await ask(chat())).status == 200
        await ask(posted("/simulator/refuse", seconds=0.1))
        fresh, refused = EngineClient(), Answer()
        fresh.send(parse_target(engine.base_url), chat(), deadlines=HASTY, sink=refused)
        await refused.over.wait()
        assert isinstance(refused.error_found, ConnectFailed)
        await fresh.close()
        await until(lambda: engine.listening)
        assert (await ask(chat())).status == 200


async def test_beyond_its_slots_requests_wait_and_beyond_its_queue_they_are_refused() -> None:
    async with running(max_num_seqs=2, max_queued=1, ttft_ms=50) as (engine, ask):
        tasks = [asyncio.create_task(ask(chat())) for _ in range(4)]
        await until(lambda: engine.stats.waiting == 1 and engine.stats.refused == 1)
        answers = await asyncio.gather(*tasks)
        assert sorted(a.status or 0 for a in answers) == [200, 200, 200, 503]
        assert (engine.stats.running, engine.stats.waiting) == (0, 0)


async def test_a_waiting_request_whose_client_leaves_frees_its_place_in_the_queue() -> None:
    async with running(max_num_seqs=1, fault=Fault(FaultKind.HANG)) as (engine, _):
        client = EngineClient()
        target = parse_target(engine.base_url)
        exchanges = [client.send(target, chat(), deadlines=PATIENT, sink=Answer()) for _ in range(3)]
        await until(lambda: (engine.stats.running, engine.stats.waiting) == (1, 2))
        for exchange in reversed(exchanges):
            exchange.cancel()
        await until(lambda: (engine.stats.running, engine.stats.waiting) == (0, 0))
        assert engine.stats.outcomes == {"abort": 3}
        await client.close()


async def test_like_llama_server_it_can_close_after_each_stream() -> None:
    async with running(close_after_stream=True) as (_, ask):
        for _ in range(3):
            answer = await ask(chat(stream=True))
            assert (answer.headers[b"connection"], answer.error_found) == (b"close", None)
            assert b"connection" not in (await ask(chat())).headers


async def test_an_answer_of_a_slow_pace_is_overtaken_by_one_without() -> None:
    async with running() as (engine, ask):
        slow = [
            asyncio.create_task(ask(chat(stream=stream, knobs=knobs)))
            for stream in (True, False)
            for knobs in ("chunk_ms=60", "ttft_ms=400")
        ]
        await until(lambda: engine.stats.running == 4)
        await ask(chat(max_tokens=500))
        assert not any(task.done() for task in slow)
        answers = await asyncio.gather(*slow)
        assert {a.status for a in answers} == {200}


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with running() as (engine, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", engine.port)
        writer.write(b"GET /version HTTP/1.1\r\n\r\nGET /health HTTP/1.1\r\n\r\n")
        writer.write(b"POST /simulator/fault HTTP/1.1\r\nconnection: close\r\ncontent-length: 1\r\n\r\n{")
        answers = await reader.read()
        assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"200", b"200", b"400"]
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": "text"},
        {"messages": [1, 2]},
        {"max_tokens": "many"},
        {"n": {}},
        {"stream_options": 5},
    ],
)
async def test_odd_requests_are_refused_or_served_but_never_break_it(fields: dict[str, object]) -> None:
    async with running() as (_, ask):
        answer = await ask(chat(**fields))
        assert answer.status in (200, 400)
        assert (await ask(chat())).status == 200


async def test_an_unknown_knob_is_refused() -> None:
    async with running() as (_, ask):
        assert (await ask(chat(knobs="tokns=3"))).status == 400
        assert (await ask(chat(knobs="fault=explode"))).status == 400
