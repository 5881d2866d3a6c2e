"""What an engine leaves uncounted: counted by whom it can be, within its bound, marked; else unknown."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.core.errors import StreamBroken
from app.gateway.model import Endpoint
from billing.journal.model import Settled
from billing.metering.model import NOTHING, Outcome, Usage, UsageSource
from scheduler.registry.model import BackendSpec
from scheduler.transport.client import EngineClient
from tests.app.gateway.captures import LLAMA, body
from tests.app.gateway.engines import Answering, serve
from tests.app.gateway.stage import BACKEND, JSON, SSE, Stage, stage
from tests.app.gateway.test_engine_tokenizer import llama, sglang, vllm
from tests.app.gateway.words import save_words

_PLAIN = replace(BACKEND, engine="openai")
_SILENT = replace(BACKEND, base_url="http://127.0.0.1:9")


def _event(content: str, *, finish_reason: str | None = None, **members: Any) -> bytes:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish_reason}
    return b"data: " + msgspec.json.encode({"id": "1", "choices": [choice], **members}) + b"\n\n"


async def _ended(on: Stage) -> Settled:
    """The one settlement, when all counting is done."""
    async with asyncio.timeout(20):
        while not on.journal.settled:
            await asyncio.sleep(0.001)
    (settled,) = on.journal.settled
    on.journal.commit()
    await on.pump()
    await on.desk.close()
    on.desk.counter.close()
    return settled


async def _cut(backend: BackendSpec, **asked: Any) -> Settled:
    """The settlement of a stream that the client cut after three words."""
    on = stage(backend=backend, **asked)
    on.relay.head(200, SSE, backend=backend)
    on.relay.piece(_event("three more") + _event(" words"))
    on.relay.gone()
    return await _ended(on)


async def _cut_at(answer: Answering, engine: str, **asked: Any) -> Settled:
    client = EngineClient()
    try:
        async with serve(answer) as base_url:
            backend = replace(BACKEND, base_url=base_url, engine=engine)
            return await _cut(backend, client=client, **asked)
    finally:
        await client.close()


@pytest.mark.parametrize(
    ("engine", "answer", "tokens", "flags"),
    [
        ("vllm", vllm, 42, ()),
        ("llama-server", llama, 4, ()),
        ("sglang", vllm, 42, ()),
        ("sglang", sglang, 2, ("template_not_counted",)),
    ],
)
async def test_a_cut_stream_that_reports_nothing_is_counted_at_its_engine_and_billed(
    engine: str, answer: Answering, tokens: int, flags: tuple[str, ...]
) -> None:
    settled = await _cut_at(answer, engine)
    assert (settled.outcome, settled.usage_source) == (Outcome.CLIENT_CANCELLED, UsageSource.TOKENIZER)
    assert settled.usage == settled.billed == Usage(input=tokens, output=3)
    assert settled.flags == ("estimated", "cached_unknown", *flags)
    assert settled.cost_picos == tokens + 2 * 3


async def test_a_tokenizer_that_lies_is_cut_to_the_bound() -> None:
    settled = await _cut_at(lambda *_: {"count": 1_165_619}, "vllm")
    assert settled.usage == settled.billed == Usage(input=100, output=50)
    assert settled.flags == ("estimated", "input_capped", "output_capped", "cached_unknown")


async def test_what_nobody_counts_is_unknown_with_its_bound() -> None:
    settled = await _cut_at(lambda *_: None, "vllm")
    assert settled.usage_source is UsageSource.UNKNOWN
    assert (settled.usage, settled.billed, settled.cost_picos) == (NOTHING, NOTHING, 0)
    assert settled.unknown_bound == Usage(input=100, output=50)


async def test_a_cut_stream_of_a_plain_engine_is_counted_by_the_models_own_file(tmp_path: Path) -> None:
    settled = await _cut(_PLAIN, tokenizer=save_words(tmp_path))
    assert (settled.outcome, settled.usage_source) == (Outcome.CLIENT_CANCELLED, UsageSource.TOKENIZER)
    assert settled.usage == settled.billed == Usage(input=2, output=3)
    assert settled.flags == ("estimated", "cached_unknown", "template_not_counted")
    assert settled.cost_picos == 2 + 2 * 3


async def test_a_completions_prompt_has_no_template_to_leave_out(tmp_path: Path) -> None:
    settled = await _cut(_PLAIN, tokenizer=save_words(tmp_path), endpoint=Endpoint.COMPLETIONS)
    assert settled.usage == Usage(input=2, output=3)
    assert settled.flags == ("estimated", "cached_unknown")


async def test_a_prompt_that_is_echoed_was_not_generated(tmp_path: Path) -> None:
    on = stage(
        streamed=False,
        backend=_PLAIN,
        tokenizer=save_words(tmp_path),
        endpoint=Endpoint.COMPLETIONS,
        echo=True,
        n=2,
    )
    on.relay.head(200, JSON, backend=_PLAIN)
    choices = [{"index": at, "text": "one two and more", "finish_reason": "stop"} for at in (0, 1)]
    on.relay.piece(msgspec.json.encode({"choices": choices}))
    on.relay.end()
    assert (await _ended(on)).usage == Usage(input=2, output=4)


async def test_a_plain_engine_without_a_tokenizer_leaves_it_unknown() -> None:
    assert (await _cut(_PLAIN)).usage_source is UsageSource.UNKNOWN


async def test_a_file_that_can_not_be_read_leaves_it_unknown_and_is_counted(tmp_path: Path) -> None:
    on = stage(backend=_PLAIN, tokenizer=str(tmp_path / "none.json"))
    on.relay.head(200, SSE, backend=_PLAIN)
    on.relay.piece(_event("three more words"))
    on.relay.gone()
    assert (await _ended(on)).usage_source is UsageSource.UNKNOWN
    assert on.desk.counter.loads == {"failed": 1}
    assert on.desk.counter.counts == {("file", "no_tokenizer"): 1}


async def test_the_file_counts_where_the_engine_does_not_answer(tmp_path: Path) -> None:
    settled = await _cut(_SILENT, tokenizer=save_words(tmp_path))
    assert (settled.usage_source, settled.usage) == (UsageSource.TOKENIZER, Usage(input=2, output=3))


async def test_what_a_broken_engine_said_is_recorded_by_the_file_and_free(tmp_path: Path) -> None:
    on = stage(backend=BACKEND, tokenizer=save_words(tmp_path))
    on.relay.head(200, SSE, backend=BACKEND)
    on.relay.piece(_event("three more words"))
    on.relay.error(StreamBroken("broke"))
    settled = await _ended(on)
    assert (settled.outcome, settled.usage_source) == (Outcome.ENGINE_FAILED, UsageSource.TOKENIZER)
    assert settled.usage == Usage(input=2, output=3)
    assert (settled.billed, settled.cost_picos) == (NOTHING, 0)
    assert set(on.desk.counter.counts) == {("file", "counted")}  # a dead engine is not asked
    assert b'"billed_tokens":0' in on.body


async def test_a_stream_that_ends_without_usage_is_counted_before_its_last_bytes_leave(
    tmp_path: Path,
) -> None:
    on = stage(backend=_PLAIN, tokenizer=save_words(tmp_path))
    on.relay.head(200, SSE, backend=_PLAIN)
    on.relay.piece(_event("three more") + _event(" words", finish_reason="stop") + b"data: [DONE]\n\n")
    await on.pump()
    assert b"[DONE]" not in on.body
    settled = await _ended(on)
    assert (settled.outcome, settled.usage) == (Outcome.COMPLETED, Usage(input=2, output=3))
    assert on.body.endswith(b"data: [DONE]\n\n")


async def test_half_a_report_is_kept_and_the_other_half_counted(tmp_path: Path) -> None:
    on = stage(backend=_PLAIN, tokenizer=save_words(tmp_path))
    on.relay.head(200, SSE, backend=_PLAIN)
    usage = {"prompt_tokens": 9, "completion_tokens": None, "prompt_tokens_details": {"cached_tokens": 4}}
    on.relay.piece(_event("three more words", usage=usage))
    on.relay.gone()
    settled = await _ended(on)
    assert settled.usage == Usage(input=5, input_cached=4, output=3)
    assert settled.flags == ("estimated",)


async def test_half_a_report_narrows_the_bound_of_what_nobody_counts() -> None:
    on = stage(backend=_PLAIN)
    on.relay.head(200, SSE, backend=_PLAIN)
    on.relay.piece(_event("three more words", usage={"prompt_tokens": 9}))
    on.relay.gone()
    settled = await _ended(on)
    assert settled.usage_source is UsageSource.UNKNOWN
    assert settled.unknown_bound == Usage(input=9, output=50)


async def test_more_tokens_by_logprobs_than_by_text_are_believed(tmp_path: Path) -> None:
    """A chunk whose text is not yet whole characters carries the tokens but no text."""
    on = stage(backend=_PLAIN, tokenizer=save_words(tmp_path))
    on.relay.head(200, SSE, backend=_PLAIN)
    listed = [{"token": "a"}, {"token": "b"}, {"token": "c"}, {"token": "d"}]
    choice = {"index": 0, "delta": {"content": "two words"}, "logprobs": {"content": listed}}
    on.relay.piece(b"data: " + msgspec.json.encode({"id": "1", "choices": [choice]}) + b"\n\n")
    on.relay.gone()
    assert (await _ended(on)).usage.output == 4


async def test_a_whole_answer_without_usage_is_counted_before_it_leaves() -> None:
    client = EngineClient()
    async with serve(vllm) as base_url:
        backend = replace(BACKEND, base_url=base_url)
        on = stage(streamed=False, backend=backend, client=client)
        on.relay.head(200, JSON, backend=backend)
        answer = {"choices": [{"message": {"content": "two words"}, "finish_reason": "stop"}]}
        on.relay.piece(msgspec.json.encode(answer))
        on.relay.end()
        settled = await _ended(on)
    await client.close()
    assert settled.usage == Usage(input=42, output=2)
    assert on.is_whole


async def test_several_answers_of_a_llama_server_are_summed_and_shown_so() -> None:
    """Its usage is that of the first choice alone: 16 of 42 + 16; the second one's words are counted."""
    client = EngineClient()
    async with serve(llama) as base_url:
        backend = replace(BACKEND, base_url=base_url, engine="llama-server")
        on = stage(streamed=False, backend=backend, client=client, n=2)
        on.relay.head(200, JSON, backend=backend)
        on.relay.piece(body(LLAMA, "chat_n2"))
        on.relay.end()
        settled = await _ended(on)
    await client.close()
    second = 7  # The capital of France is Paris, France.
    assert settled.usage == Usage(input=1, input_cached=41, output=16 + second)
    assert (settled.usage_source, settled.flags) == (UsageSource.TOKENIZER, ("estimated",))
    told = msgspec.json.decode(on.body)
    assert told["usage"] == {
        "prompt_tokens": 42,
        "completion_tokens": 16 + second,
        "total_tokens": 58 + second,
        "prompt_tokens_details": {"cached_tokens": 41},
    }
    assert told["choices"] == msgspec.json.decode(body(LLAMA, "chat_n2"))["choices"]


async def test_several_answers_that_nobody_counted_show_no_usage() -> None:
    backend = replace(_SILENT, engine="llama-server")
    on = stage(streamed=False, backend=backend, n=2)
    on.relay.head(200, JSON, backend=backend)
    on.relay.piece(body(LLAMA, "chat_n2"))
    on.relay.end()
    settled = await _ended(on)
    assert settled.usage_source is UsageSource.UNKNOWN
    assert msgspec.json.decode(on.body)["usage"] is None
