"""One settlement whatever happens, in whatever order; and no last byte before it is durable."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.errors import ConnectFailed, EngineError, Rejected, RejectReason, StreamBroken
from app.gateway.progress import shutting_down
from billing.metering.model import Outcome, UsageSource
from tests.app.gateway.captures import VLLM, body
from tests.app.gateway.stage import BACKEND, JSON, SSE, WALLET, stage

_STREAM = body(VLLM, "chat_stream_usage_continuous")


async def test_the_last_bytes_of_a_stream_wait_for_the_disk() -> None:
    on = stage()
    on.relay.head(200, SSE, backend=BACKEND)
    on.relay.piece(_STREAM)
    await on.pump()
    assert b" Paris" in on.body
    assert b"[DONE]" not in on.body
    assert len(on.journal.settled) == 1
    on.journal.commit()
    await on.pump()
    assert on.body.endswith(b"data: [DONE]\n\n")
    assert on.is_whole


async def test_an_answer_that_is_not_streamed_waits_whole() -> None:
    on = stage(streamed=False)
    on.relay.head(200, JSON, backend=BACKEND)
    on.relay.piece(body(VLLM, "chat")[:100])
    on.relay.piece(body(VLLM, "chat")[100:])
    on.relay.end()
    await on.pump()
    assert on.sent == []
    on.journal.commit()
    await on.pump()
    assert on.body == body(VLLM, "chat")
    assert on.dispatch.learnt == [(42, 8)]


async def test_a_stream_whose_settlement_fails_ends_in_a_visible_error() -> None:
    on = stage()
    on.relay.head(200, SSE, backend=BACKEND)
    on.relay.piece(_STREAM)
    on.journal.commit(durable=False)
    await on.pump()
    assert b"[DONE]" not in on.body
    assert b'"code":"journal_unwritable"' in on.body
    assert on.is_whole


async def test_an_answer_whose_settlement_fails_is_withheld() -> None:
    on = stage(streamed=False)
    on.relay.head(200, JSON, backend=BACKEND)
    on.relay.piece(body(VLLM, "chat"))
    on.relay.end()
    on.journal.commit(durable=False)
    await on.pump()
    assert on.sent[0]["status"] == 503
    assert b"Paris" not in on.body


async def test_what_a_settlement_frees_is_used_at_once_but_returned_only_when_durable() -> None:
    on = stage()
    on.relay.head(200, SSE, backend=BACKEND)
    on.relay.piece(_STREAM)
    lease = on.leases.lease(WALLET)
    cost = on.journal.settled[0].cost_picos
    assert cost == 42 + 2 * 8
    assert lease.free == 1000 - cost
    assert lease.returnable == 800
    on.journal.commit()
    assert lease.returnable == 1000 - cost


async def test_a_failed_settlement_returns_nothing() -> None:
    on = stage()
    on.relay.gone()
    on.journal.commit(durable=False)
    assert on.leases.lease(WALLET).returnable == 800


async def test_a_client_that_leaves_stops_the_engine_and_pays_what_it_got() -> None:
    on = stage()
    on.relay.head(200, SSE, backend=BACKEND)
    on.relay.piece(_STREAM[: _STREAM.index(b" France")])
    on.relay.gone()
    (settled,) = on.journal.settled
    assert on.dispatch.cancelled
    assert settled.outcome is Outcome.CLIENT_CANCELLED
    assert (settled.usage.input, settled.usage.output) == (42, 3)
    assert settled.cost_picos == 42 + 2 * 3


async def test_a_client_that_leaves_once_all_is_said_has_a_complete_answer() -> None:
    on = stage()
    on.relay.head(200, SSE, backend=BACKEND)
    on.relay.piece(_STREAM[: _STREAM.index(b'"choices":[],')])
    on.relay.gone()
    on.relay.end()
    (settled,) = on.journal.settled
    assert settled.outcome is Outcome.COMPLETED
    assert settled.usage.output == 8


async def test_an_engine_that_has_finished_is_heard_out_for_its_usage_when_the_client_leaves() -> None:
    """Else whoever hangs up right before the usage would have the whole answer for nothing."""
    on = stage()
    stream = body(VLLM, "chat_stream_usage")
    usage_at = stream.rindex(b"data: ", 0, stream.index(b'"choices":[],'))
    on.relay.head(200, SSE, backend=BACKEND)
    on.relay.piece(stream[:usage_at])
    on.relay.gone()
    assert (on.journal.settled, on.dispatch.cancelled) == ([], False)
    on.relay.piece(stream[usage_at:])
    (settled,) = on.journal.settled
    assert (settled.outcome, settled.usage_source) == (Outcome.COMPLETED, UsageSource.ENGINE)
    assert settled.cost_picos == 42 + 2 * 8
    on.journal.commit()
    await on.pump()
    assert not on.is_whole


async def test_an_engine_that_has_finished_is_not_heard_out_for_ever() -> None:
    on = stage()
    stream = body(VLLM, "chat_stream_usage")
    on.relay.head(200, SSE, backend=BACKEND)
    on.relay.piece(stream[: stream.rindex(b"data: ", 0, stream.index(b'"choices":[],'))])
    on.relay.gone()
    async with asyncio.timeout(30):
        while not on.dispatch.cancelled:
            await asyncio.sleep(0.01)


async def test_a_scheduler_without_a_backend_is_answered_with_its_advice() -> None:
    on = stage()
    on.dispatch.attempts = []
    refusal = Rejected(RejectReason.QUEUE_FULL, "All backends are busy.", status=429, retry_after_s=2.4)
    on.relay.error(refusal)
    on.journal.commit()
    await on.pump()
    (settled,) = on.journal.settled
    assert on.sent[0]["status"] == 429
    assert (b"retry-after", b"3") in on.sent[0]["headers"]
    assert (settled.outcome, settled.usage_source) == (Outcome.ENGINE_FAILED, UsageSource.ENGINE)
    assert (settled.error_code, settled.unknown_bound) == ("queue_full", None)


async def test_an_engine_that_broke_inside_is_told_to_the_scheduler() -> None:
    on = stage()
    on.relay.head(200, SSE, backend=BACKEND)
    on.relay.piece(body("vllm-0.32.0-cpu-faults", "killcore_stream"))
    assert on.dispatch.broke
    assert on.journal.settled[0].outcome is Outcome.ENGINE_FAILED


async def test_a_clean_end_without_its_last_chunk_is_not_success() -> None:
    on = stage()
    on.relay.head(200, SSE, backend=BACKEND)
    on.relay.piece(_STREAM[: _STREAM.index(b" France")])
    on.relay.end()
    on.journal.commit()
    await on.pump()
    assert on.journal.settled[0].outcome is Outcome.ENGINE_FAILED
    assert b'"error"' in on.body
    assert b"[DONE]" not in on.body


async def test_an_answer_that_is_no_json_is_an_engines_fault() -> None:
    on = stage(streamed=False)
    on.relay.head(200, JSON, backend=BACKEND)
    on.relay.piece(b"<html>")
    on.relay.end()
    assert on.journal.settled[0].outcome is Outcome.ENGINE_FAILED


@pytest.mark.parametrize(
    ("status", "told", "outcome"),
    [
        (400, 400, Outcome.REFUSED_BY_ENGINE),
        (429, 429, Outcome.REFUSED_BY_ENGINE),
        (401, 502, Outcome.ENGINE_FAILED),
        (404, 502, Outcome.ENGINE_FAILED),
        (500, 502, Outcome.ENGINE_FAILED),
        (503, 503, Outcome.ENGINE_FAILED),
    ],
)
async def test_what_an_engines_status_means(status: int, told: int, outcome: Outcome) -> None:
    on = stage()
    on.relay.head(status, JSON, backend=BACKEND)
    on.relay.piece(b'{"error":{"message":"engine says so","type":"x","param":"p","code":1}}')
    on.relay.end()
    on.journal.commit()
    await on.pump()
    assert on.sent[0]["status"] == told
    assert on.journal.settled[0].outcome is outcome
    assert (b"engine says so" in on.body) is (outcome is Outcome.REFUSED_BY_ENGINE)


async def test_an_engine_paused_for_a_slow_client_is_read_on_once_it_has_said_all() -> None:
    on = stage()
    on.relay.head(200, SSE, backend=BACKEND)
    text = b'data: {"choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":null}]}\n\n' % (
        b"a" * 4000
    )
    on.relay.piece(text * 100)
    assert on.dispatch.paused
    on.relay.piece(_STREAM)
    assert on.relay.ended
    assert not on.dispatch.paused


_EVENTS = st.lists(
    st.sampled_from(
        ["piece", "piece", "piece", "rest", "end", "break", "unreached", "gone", "abort", "commit", "lose"]
    ),
    max_size=12,
)


@given(_EVENTS, st.booleans())
async def test_any_order_of_events_ends_in_exactly_one_settlement(events: list[str], streamed: bool) -> None:
    on = stage(streamed=streamed)
    data = _STREAM if streamed else body(VLLM, "chat")
    at = 0
    headed = over = False
    for event in [*events, "gone", "abort"]:  # an engine that has finished is heard out when the client goes
        if event in ("piece", "rest") and not over:
            if not headed:
                on.relay.head(200, SSE if streamed else JSON, backend=BACKEND)
                headed = True
            step = len(data) if event == "rest" else 400
            if piece := data[at : at + step]:
                on.relay.piece(piece)
            at += step
        elif event == "end" and headed and not over:
            over = True
            on.relay.end()
        elif event in ("break", "unreached") and not over:
            over = True
            error: EngineError = StreamBroken("broke") if event == "break" else ConnectFailed("no way")
            on.relay.error(error)
        elif event == "gone":
            on.relay.gone()
        elif event == "abort":
            on.relay.abort(shutting_down())
        elif event in ("commit", "lose"):
            on.journal.commit(durable=event == "commit")
        await on.pump()
        assert len(on.journal.settled) <= 1
    (settled,) = on.journal.settled
    on.journal.commit()
    lease = on.leases.lease(WALLET)
    assert lease.held == 0
    assert lease.free == 1000 - settled.cost_picos
    if settled.outcome is not Outcome.COMPLETED:
        assert b"[DONE]" not in on.body
