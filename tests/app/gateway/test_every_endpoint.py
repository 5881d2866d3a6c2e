"""Every endpoint, streamed or not, of every kind of engine is metered: a table with no gap in it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import msgspec
import pytest

from app.gateway.dialect import DIALECTS
from app.gateway.model import Endpoint
from billing.metering.model import Outcome, Usage, UsageSource
from tests.app.gateway.captures import DECODE, LLAMA, VLLM, body
from tests.app.gateway.stage import BACKEND, JSON, SSE, stage

_CHAT, _COMPLETIONS = Endpoint.CHAT, Endpoint.COMPLETIONS


class Case(NamedTuple):
    """An answer, and the usage that it must come to."""

    data: bytes
    usage: Usage
    flags: tuple[str, ...] = ()


def _sglang(text: dict[str, Any], *, streamed: bool) -> bytes:
    """As SGLang writes it: no details where nothing was cached, reasoning beside the totals."""
    usage = {
        "prompt_tokens": 42,
        "total_tokens": 50,
        "completion_tokens": 8,
        "prompt_tokens_details": None,
        "reasoning_tokens": 2,
    }
    choice = {"index": 0, **text, "logprobs": None, "finish_reason": "stop", "matched_stop": 2}
    if not streamed:
        return msgspec.json.encode({"id": "s", "choices": [choice], "usage": usage, "metadata": {}})
    early = {**usage, "completion_tokens": 3, "total_tokens": 45, "reasoning_tokens": 0}
    chunks = [
        {"id": "s", "choices": [{**choice, "finish_reason": None}], "usage": early},
        {"id": "s", "choices": [choice], "usage": None},
        {"id": "s", "choices": [], "usage": usage},
    ]
    return b"".join(b"data: " + msgspec.json.encode(one) + b"\n\n" for one in chunks) + b"data: [DONE]\n\n"


def _case(engine: str, name: str, *usage: int) -> Case:
    return Case(body(engine, name), Usage(*usage))


_SGLANG = Usage(42, 0, 0, 8, 2)
_UNTOLD = ("cached_unknown",)
_DELTA, _MESSAGE, _TEXT = {"delta": {"content": "a"}}, {"message": {"content": "a"}}, {"text": "a"}
CASES: dict[tuple[str, Endpoint, bool], Case] = {
    ("vllm", _CHAT, True): _case(VLLM, "chat_stream_usage_continuous", 42, 0, 0, 8),
    ("vllm", _CHAT, False): _case(VLLM, "chat", 42, 0, 0, 8),
    ("vllm", _COMPLETIONS, True): _case(VLLM, "completion_stream_usage", 5, 0, 0, 6),
    ("vllm", _COMPLETIONS, False): _case(VLLM, "completion", 5, 0, 0, 6),
    ("simulator", _CHAT, True): _case(VLLM, "chat_longprefix_3_cached_stream", 43, 1024, 0, 4),
    ("simulator", _CHAT, False): _case(DECODE, "02_decode", 1067, 0, 0, 8),
    ("simulator", _COMPLETIONS, True): _case(VLLM, "completion_stream_continuous", 10, 0, 0, 12),
    ("simulator", _COMPLETIONS, False): _case(DECODE, "12_decode_completions", 1050, 0, 0, 4),
    ("sglang", _CHAT, True): Case(_sglang(_DELTA, streamed=True), _SGLANG, _UNTOLD),
    ("sglang", _CHAT, False): Case(_sglang(_MESSAGE, streamed=False), _SGLANG, _UNTOLD),
    ("sglang", _COMPLETIONS, True): Case(_sglang(_TEXT, streamed=True), _SGLANG, _UNTOLD),
    ("sglang", _COMPLETIONS, False): Case(_sglang(_TEXT, streamed=False), _SGLANG, _UNTOLD),
    ("llama-server", _CHAT, True): _case(LLAMA, "chat_stream_usage", 1, 41, 0, 8),
    ("llama-server", _CHAT, False): _case(LLAMA, "chat", 42, 0, 0, 8),
    ("llama-server", _COMPLETIONS, True): _case(LLAMA, "completion_stream_usage", 1, 4, 0, 6),
    ("llama-server", _COMPLETIONS, False): _case(LLAMA, "completion", 5, 0, 0, 6),
    ("openai", _CHAT, True): _case(VLLM, "chat_stream_usage", 42, 0, 0, 8),
    ("openai", _CHAT, False): _case(VLLM, "chat", 42, 0, 0, 8),
    ("openai", _COMPLETIONS, True): _case(VLLM, "completion_stream_usage", 5, 0, 0, 6),
    ("openai", _COMPLETIONS, False): _case(VLLM, "completion", 5, 0, 0, 6),
}
"""(kind of engine, endpoint, streamed) → an answer recorded from it, or written as it writes them."""


def test_no_endpoint_of_any_engine_is_without_its_case() -> None:
    assert set(CASES) == set(product(DIALECTS, Endpoint, (True, False)))


@pytest.mark.parametrize(("engine", "endpoint", "streamed"), CASES)
async def test_what_is_reported_is_recorded_and_billed(
    engine: str, endpoint: Endpoint, streamed: bool
) -> None:
    case = CASES[engine, endpoint, streamed]
    backend = replace(BACKEND, engine=engine)
    on = stage(streamed=streamed, backend=backend, endpoint=endpoint)
    on.relay.head(200, SSE if streamed else JSON, backend=backend)
    on.relay.piece(case.data)
    on.relay.end()
    (settled,) = on.journal.settled
    assert (settled.outcome, settled.usage_source) == (Outcome.COMPLETED, UsageSource.ENGINE)
    assert settled.usage == case.usage
    above = ("input_above_bound",) if settled.usage.total - settled.usage.output > 100 else ()
    assert settled.flags == case.flags + above
    assert settled.billed.total > 0


@pytest.mark.parametrize(("engine", "endpoint"), [(case[0], case[1]) for case in CASES if case[2]])
async def test_a_cut_stream_is_known_so_far_or_unknown_but_never_zero(
    engine: str, endpoint: Endpoint
) -> None:
    case = CASES[engine, endpoint, True]
    backend = replace(BACKEND, engine=engine)
    events = case.data.split(b"\n\n")
    on = stage(backend=backend, endpoint=endpoint)
    on.relay.head(200, SSE, backend=backend)
    on.relay.piece(b"\n\n".join(events[: len(events) // 3]) + b"\n\n")
    on.relay.gone()
    await on.desk.close()
    (settled,) = on.journal.settled
    assert settled.outcome is Outcome.CLIENT_CANCELLED
    if settled.usage_source is UsageSource.UNKNOWN:
        assert settled.unknown_bound == Usage(input=100, output=50)
    else:
        assert settled.usage_source is UsageSource.ENGINE_PARTIAL
        assert settled.usage.total > 0
