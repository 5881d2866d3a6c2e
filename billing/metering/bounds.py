"""Upper bounds of what a request can consume, for holds and for what nobody counted. Pure."""

from __future__ import annotations

from billing.metering.model import Usage

TEMPLATE_TOKENS = 512
"""What a chat template may add to a prompt: role markers, a default system prompt, instructions for tools."""


def input_bound(content_bytes: int, *, prompts: int, context_limit: int, is_text: bool) -> int:
    """The most tokens that a request's input can be.

    content_bytes: of the request's text; byte-level tokenizers never make more tokens than bytes.
    is_text False (an image says little in bytes): only the context limit bounds it.
    """
    ceiling = context_limit * prompts
    return min(content_bytes + TEMPLATE_TOKENS * prompts, ceiling) if is_text else ceiling


def output_bound(max_tokens: int, *, choices: int) -> int:
    """The most tokens that a request's output can be: `max_tokens` for each choice of each prompt."""
    return max_tokens * choices


def capped(usage: Usage, *, input_tokens: int, output_tokens: int) -> tuple[Usage, tuple[str, ...]]:
    """An estimate within its bounds, and flags that tell where it was cut. Not for engines' own numbers."""
    flags = ["estimated"]
    fresh, output = usage.input, usage.output
    if fresh > input_tokens:
        fresh = input_tokens
        flags.append("input_capped")
    if output > output_tokens:
        output = output_tokens
        flags.append("output_capped")
    return Usage(input=fresh, output=output), tuple(flags)
