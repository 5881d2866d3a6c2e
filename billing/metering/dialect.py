"""How engines write usage: OpenAI's `usage` object, llama-server's `timings`. Raw bytes → `Report`."""

from __future__ import annotations

import msgspec

from billing.metering.convert import Report


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None
    created_cache_tokens: int | None = None


class _CompletionDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class UsageWire(msgspec.Struct):
    """OpenAI's `usage`, as vLLM, SGLang and llama-server write it too."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None

    def report(self) -> Report:
        prompt, completion = self.prompt_tokens_details, self.completion_tokens_details
        return Report(
            prompt=self.prompt_tokens,
            completion=self.completion_tokens,
            cached=prompt.cached_tokens if prompt else None,
            cache_write=prompt.created_cache_tokens if prompt else None,
            reasoning=completion.reasoning_tokens if completion else None,
        )


class _TimingsWire(msgspec.Struct):
    cache_n: int
    prompt_n: int
    predicted_n: int


_usage = msgspec.json.Decoder(UsageWire).decode
_timings = msgspec.json.Decoder(_TimingsWire).decode


def read_usage(raw: bytes) -> Report | None:
    """The report in a `usage` object, or None if it is none."""
    try:
        return _usage(raw).report()
    except msgspec.MsgspecError:
        return None


def read_timings(raw: bytes) -> Report | None:
    """The report in llama-server's `timings` (cumulative, with `timings_per_token`), or None."""
    try:
        timings = _timings(raw)
    except msgspec.MsgspecError:
        return None
    return Report(
        prompt=timings.cache_n + timings.prompt_n, completion=timings.predicted_n, cached=timings.cache_n
    )
