"""What each kind of engine understands, and how it counts: one row per engine, data and not branches."""

from __future__ import annotations

import msgspec

from billing.metering.convert import Convention


class Dialect(msgspec.Struct, frozen=True):
    """An engine's ways.

    continuous: `stream_options.continuous_usage_stats` puts cumulative usage into every chunk.
    timings: `timings_per_token` does, as a `timings` object.   salt: takes `cache_salt`.
    per_choice: with several choices, each chunk of a stream counts its own one.
    totals: a stream's last usage, and a whole answer's, count all choices.   tokenize: how it counts a text:
    `vllm` (`/tokenize` of a prompt or of messages), `sglang` (the same, of messages in newer ones only),
    `llama` (`/apply-template`, `/tokenize`), or not.
    """

    continuous: bool = False
    timings: bool = False
    salt: bool = False
    per_choice: bool = False
    totals: bool = True
    tokenize: str | None = None
    convention: Convention = Convention.INCLUDES_CACHE


VLLM = Dialect(continuous=True, salt=True, per_choice=True, tokenize="vllm")
DIALECTS: dict[str, Dialect] = {
    "vllm": VLLM,
    "simulator": VLLM,
    "sglang": Dialect(continuous=True, per_choice=True, tokenize="sglang"),
    "llama-server": Dialect(timings=True, per_choice=True, totals=False, tokenize="llama"),
    "openai": Dialect(),
}
PLAIN = Dialect()


def dialect_of(engine: str) -> Dialect:
    """The dialect of an engine; one that no row names gets nothing beyond OpenAI's own."""
    return DIALECTS.get(engine, PLAIN)
