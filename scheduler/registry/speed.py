"""What finished requests taught us: a backend's speed, and how large a deployment's requests are. Pure.

Work is counted in output-token equivalents. A prompt token costs a fraction of an output token, as
prefill handles a whole prompt in few passes while decode needs one pass for each token.
"""

from __future__ import annotations

from math import inf

PROMPT_TOKEN_WORK = 1 / 16
"""Work of one prompt token: the order of prefill to decode throughput of one engine; both are learned
together as time per work, so an error here only blurs the scale between long prompts and long answers."""
EWMA_SHARE = 0.2
"""Weight of the newest observation."""
STALE_S = 60.0
"""A speed not confirmed for that long is unknown again: a backend that was slow once gets another look."""
PRIOR_OUTPUT_TOKENS = 256.0
PRIOR_PROMPT_SHARE = 0.25
"""Prompt tokens per token of the bound, while nothing finished: a bound counts bytes, about four a token."""


def work_of(prompt_tokens: float, output_tokens: float) -> float:
    """The work of a request, in output-token equivalents; at least one."""
    return max(prompt_tokens * PROMPT_TOKEN_WORK + output_tokens, 1.0)


class Speed:
    """Time per work of one backend: the ratio of two moving averages, so tiny requests weigh little."""

    __slots__ = ("_ms", "_observed_at", "_work")

    def __init__(self) -> None:
        self._ms = 0.0
        self._work = 0.0
        self._observed_at: float | None = None

    def observe(self, *, duration_ms: float, work: float, now: float) -> None:
        """Learn from one request that came to its end. `now`: monotonic seconds."""
        share = 1.0 if self.ms_per_work(now) is None else EWMA_SHARE
        self._ms += share * (duration_ms - self._ms)
        self._work += share * (work - self._work)
        self._observed_at = now

    def known_until(self) -> float:
        """The time until which it is as it is now, if nothing more is observed."""
        return inf if self._observed_at is None else self._observed_at + STALE_S

    def ms_per_work(self, now: float) -> float | None:
        """Milliseconds per unit of work; None if nothing was learned lately."""
        if self._observed_at is None or now - self._observed_at > STALE_S:
            return None
        return self._ms / self._work


class Sizes:
    """How large the requests of one deployment turn out to be, compared with what they might be."""

    __slots__ = ("_output_tokens", "_prompt_share")

    def __init__(self) -> None:
        self._output_tokens = PRIOR_OUTPUT_TOKENS
        self._prompt_share = PRIOR_PROMPT_SHARE

    def expected_work(self, *, prompt_tokens_bound: int, max_output_tokens: int) -> float:
        """Work to be expected of a request with these bounds; never more than they allow."""
        return work_of(prompt_tokens_bound * self._prompt_share, min(self._output_tokens, max_output_tokens))

    def observe(self, *, prompt_tokens: int, prompt_tokens_bound: int, output_tokens: int) -> None:
        """Learn from one request that came to its end."""
        self._output_tokens += EWMA_SHARE * (output_tokens - self._output_tokens)
        if prompt_tokens_bound > 0:
            share = min(prompt_tokens / prompt_tokens_bound, 1.0)
            self._prompt_share += EWMA_SHARE * (share - self._prompt_share)
