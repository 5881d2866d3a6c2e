"""Upper bounds of what a request can consume, for holds and for what nobody counted. Pure."""

from __future__ import annotations

from billing.metering.model import Usage

TEMPLATE_TOKENS = 512
"""What a chat template may add to a prompt: role markers, a default system prompt, instructions for tools."""


TOOL_TEMPLATE_TOKENS = 1536
"""What it may add beyond that where there are tools: how to call them, in which form to answer."""
RENDERED_GROWTH = 4
"""Longest that JSON becomes when a template prints it anew: `1e15,` becomes `1000000000000000.0, `."""


def input_bound(
    content_bytes: int, *, prompts: int, context_limit: int, is_text: bool, rendered_bytes: int = 0
) -> int:
    """The most tokens that a request's input can be.

    content_bytes: of the request's text; byte-level tokenizers never make more tokens than bytes.
    rendered_bytes: those of them that a template prints anew as JSON.
    is_text False (an image says little in bytes): only the context limit bounds it.
    """
    ceiling = context_limit * prompts
    if not is_text:
        return ceiling
    most = content_bytes + TEMPLATE_TOKENS * prompts
    if rendered_bytes:
        most += rendered_bytes * (RENDERED_GROWTH - 1) + TOOL_TEMPLATE_TOKENS
    return min(most, ceiling)


def output_bound(max_tokens: int, *, choices: int) -> int:
    """The most tokens that a request's output can be: `max_tokens` for each choice of each prompt."""
    return max_tokens * choices


def within(usage: Usage, bound: Usage) -> Usage:
    """The part of a usage that lies within what a request can consume.

    bound: `input` of all input, `output`. Of too much input the dearest is left out first: what is fresh.
    """
    over = usage.total - usage.output - bound.input
    if over <= 0 and usage.output <= bound.output:
        return usage
    fresh, written, cached = usage.input, usage.input_cache_write, usage.input_cached
    over = max(over, 0)
    fresh, over = max(0, fresh - over), max(0, over - fresh)
    written, over = max(0, written - over), max(0, over - written)
    output = min(usage.output, bound.output)
    return Usage(fresh, max(0, cached - over), written, output, min(usage.reasoning, output))


def capped(usage: Usage, bound: Usage) -> tuple[Usage, tuple[str, ...]]:
    """An estimate within its bound, and flags that tell where it was cut. Not for engines' own numbers."""
    flags = ["estimated"]
    if usage.total - usage.output > bound.input:
        flags.append("input_capped")
    if usage.output > bound.output:
        flags.append("output_capped")
    return within(usage, bound), tuple(flags)
