"""What a request consumes of its rates: as it goes, and at its end, however it ends."""

from __future__ import annotations

import pytest

from app.core.clock import ManualClock
from app.core.errors import StreamBroken
from app.core.ids import AllowanceId
from app.gateway.progress import Running
from app.gateway.terms import Drawn
from billing.quota.model import Rate
from tests.app.gateway.captures import VLLM, body
from tests.app.gateway.stage import BACKEND, SSE, Stage, stage

_STREAM = body(VLLM, "chat_stream_usage_continuous")
_HALF = _STREAM[: _STREAM.index(b" Paris")]


def rate(what: str) -> Drawn:
    return Drawn(AllowanceId(f"alw_{what}"), "tenant", "ten_1", what, "minute", rate=Rate(1000, 1000))


RATES = (rate("tokens"), rate("input_tokens"), rate("output_tokens"), rate("requests"))


def consumed(on: Stage) -> dict[str, int]:
    """What the authority is told of each rate."""
    return {each.what: on.leases.lease(each.allowance_id).covered for each in RATES}


def free(on: Stage) -> dict[str, int]:
    return {each.what: on.leases.lease(each.allowance_id).free for each in RATES}


async def test_an_answer_that_came_to_its_end_consumed_its_tokens() -> None:
    on = stage(rates=RATES)
    on.relay.head(200, SSE, backend=BACKEND)
    on.relay.piece(_STREAM)
    usage = on.journal.settled[0].usage
    assert consumed(on) == {
        "tokens": usage.total,
        "input_tokens": usage.total - usage.output,
        "output_tokens": usage.output,
        "requests": 1,
    }
    assert free(on) == {what: 1000 - amount for what, amount in consumed(on).items()}
    assert [used.what for used in on.journal.settled[0].used] == ["picos"], "no rate is in the journal"


async def test_a_running_stream_tells_its_tokens_with_each_progress_row() -> None:
    on = stage(rates=RATES)
    running = Running(on.journal, clock=ManualClock(), interval_s=1.0)
    running.add(on.relay)
    on.relay.head(200, SSE, backend=BACKEND)
    on.relay.piece(_HALF)
    running.write()
    reading = on.relay.reading()
    assert reading is not None
    assert reading.usage is not None
    told = consumed(on)
    assert told["tokens"] == reading.usage.total > 0
    assert free(on)["tokens"] == 850, "what it may still need stays held"
    on.relay.piece(_STREAM[len(_HALF) :])
    running.write()
    assert consumed(on)["tokens"] == on.journal.settled[0].usage.total > told["tokens"]


async def test_what_our_side_broke_consumed_what_was_heard_of_it() -> None:
    on = stage(rates=RATES)
    on.relay.head(200, SSE, backend=BACKEND)
    on.relay.piece(_HALF)
    on.relay.error(StreamBroken("gone"))
    usage = on.journal.settled[0].usage
    assert on.journal.settled[0].cost_picos == 0
    assert consumed(on)["tokens"] == usage.total > 0, "the engine worked, whoever pays"


async def test_a_request_that_no_engine_took_was_a_request_and_no_tokens() -> None:
    on = stage(rates=RATES)
    on.dispatch.attempts.clear()
    on.relay.error(StreamBroken("none"))
    assert consumed(on) == {"tokens": 0, "input_tokens": 0, "output_tokens": 0, "requests": 1}


@pytest.mark.parametrize("streamed", [True, False])
async def test_what_nobody_counted_is_taken_to_be_all_that_it_could_be(*, streamed: bool) -> None:
    on = stage(rates=RATES, streamed=streamed)
    on.relay.head(200, SSE, backend=BACKEND)
    on.relay.gone()
    assert on.journal.settled[0].unknown_bound is not None
    assert on.journal.settled[0].cost_picos == 0
    assert consumed(on) == {"tokens": 150, "input_tokens": 100, "output_tokens": 50, "requests": 1}
