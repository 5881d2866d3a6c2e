"""How engines write usage: OpenAI's `usage` object, llama-server's `timings`. Raw bytes → `Report`.

Engines are not to be trusted with types: a count may come as `8.0` or `"8"`, which is still 8, or as
something that is no count at all. One odd field never costs the others, nor the answer it came with.
"""

from __future__ import annotations

from typing import Any

import msgspec

from billing.metering.convert import Report

MOST_TOKENS = 2**53
"""No answer has more; a greater number is not a count."""


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None
    created_cache_tokens: int | None = None


class _CompletionDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class _UsageWire(msgspec.Struct):
    """OpenAI's `usage`, as vLLM, SGLang and llama-server write it. SGLang: reasoning beside the totals."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None
    reasoning_tokens: int | None = None


class _TimingsWire(msgspec.Struct):
    cache_n: int
    prompt_n: int
    predicted_n: int


_usage = msgspec.json.Decoder(_UsageWire).decode
_timings = msgspec.json.Decoder(_TimingsWire).decode
_plain = msgspec.json.Decoder(dict[str, Any]).decode


def read_usage(raw: bytes | memoryview) -> Report | None:
    """The report in a `usage` object, or None if it is none or states nothing."""
    try:
        wire = _usage(raw)
    except msgspec.ValidationError:
        return _read_odd_usage(raw)
    except (msgspec.MsgspecError, RecursionError):
        return None
    prompt, completion = wire.prompt_tokens_details, wire.completion_tokens_details
    reasoning = completion.reasoning_tokens if completion else None
    counts = (
        wire.prompt_tokens,
        wire.completion_tokens,
        prompt.cached_tokens if prompt else None,
        prompt.created_cache_tokens if prompt else None,
        wire.reasoning_tokens if reasoning is None else reasoning,
    )
    if all(count is None or 0 <= count <= MOST_TOKENS for count in counts):
        return Report(*counts)
    return _report(counts)


def read_timings(raw: bytes) -> Report | None:
    """The report in llama-server's `timings` (cumulative, with `timings_per_token`), or None."""
    try:
        timings = _timings(raw)
    except msgspec.MsgspecError:
        return None
    if min(timings.cache_n, timings.prompt_n, timings.predicted_n) < 0:
        return None
    return Report(
        prompt=timings.cache_n + timings.prompt_n, completion=timings.predicted_n, cached=timings.cache_n
    )


def _read_odd_usage(raw: bytes | memoryview) -> Report | None:
    """What can be understood of an object whose fields are not of their types."""
    try:
        usage = _plain(raw)
    except (msgspec.MsgspecError, RecursionError):
        return None
    prompt, completion = (usage.get(f"{side}_tokens_details") for side in ("prompt", "completion"))
    prompt, completion = (part if isinstance(part, dict) else {} for part in (prompt, completion))
    return _report(
        (
            usage.get("prompt_tokens"),
            usage.get("completion_tokens"),
            prompt.get("cached_tokens"),
            prompt.get("created_cache_tokens"),
            completion.get("reasoning_tokens", usage.get("reasoning_tokens")),
        )
    )


def _report(values: tuple[Any, ...]) -> Report:
    """A report of what counts there are, marked because not all values were counts."""
    prompt, completion, cached, cache_write, reasoning = map(_count, values)
    return Report(prompt, completion, cached, cache_write, reasoning, malformed=True)


def _count(value: Any) -> int | None:
    """A whole number of tokens, however it is written, or None."""
    digits = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 16
    if digits or (isinstance(value, float) and value.is_integer()):
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_TOKENS:
        return value
    return None
