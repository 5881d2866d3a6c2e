"""How tokens are measured, in words: beside the table in `billing/metering/policy.py`, for people to read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from billing.metering.model import Meter, Outcome, UsageSource


class ClassWords(NamedTuple):
    """means: which tokens belong to a class.   counted: when, and how often."""

    means: str
    counted: str


CLASSES: Mapping[Meter, ClassWords] = {
    Meter.INPUT: ClassWords(
        "Tokens of the prompt that the engine had to read: messages, tools, what the chat template adds.",
        "Once for each prompt, however many answers are asked for.",
    ),
    Meter.INPUT_CACHED: ClassWords(
        "Tokens of the prompt that the engine found in its own cache.",
        "As the engine reports it at the end. Where a cut leaves it unknown, the whole prompt is input.",
    ),
    Meter.INPUT_CACHE_WRITE: ClassWords(
        "Tokens of the prompt that the engine reports as newly written to its cache.",
        "Once, instead of input and never beside it. Engines that do not tell have none.",
    ),
    Meter.OUTPUT: ClassWords(
        "Every token that the model made: text, reasoning, tool calls, and the token that ends an answer.",
        "As it is made, over all answers of a request. If you hang up, up to the last count before that.",
    ),
}
"""The disjoint classes: their sum is the whole of a request."""

OUTCOMES: Mapping[Outcome, str] = {
    Outcome.COMPLETED: "You got the answer to its end.",
    Outcome.CLIENT_CANCELLED: "You went away before the end; the engine was told to stop.",
    Outcome.ENGINE_FAILED: "The engine broke off or could not be reached.",
    Outcome.REFUSED_BY_ENGINE: "The engine answered with an error, such as a 400.",
    Outcome.TIMED_OUT: "One of our time limits ended it.",
    Outcome.LOST: "Our own process died; the request is settled from its journal.",
}

SOURCES: Mapping[UsageSource, str] = {
    UsageSource.ENGINE: "The engine reported the usage of the whole answer.",
    UsageSource.ENGINE_PARTIAL: "The engine reported as it went; the last report before the cut counts.",
    UsageSource.TOKENIZER: "A tokenizer counted what was delivered, never above the request's limit.",
    UsageSource.UNKNOWN: "Nobody counted. It is recorded with an upper bound, and billed nothing.",
}

FREE = (
    "A request that is refused: an unknown key, a limit reached, a full queue, a balance too low.",
    "An answer that our side broke: an engine that failed or refused, a process of ours that died.",
    "Usage that nobody counted. It is shown as unknown, with its bound.",
    "What an engine went on to make after you had hung up.",
    "Tokens above what the request could consume by its limits, whatever an engine reports.",
    "Tries at other engines before one answered: a request is charged once, by the engine that served it.",
)

CHECKS = (
    ("steelyard requests explain REQUEST", "one request: its tokens by class, its price, the sum"),
    ("steelyard usage show", "the sums by day, project, key or model"),
    ("steelyard usage events --from DAY > FILE", "every request as one line, chained to the one before"),
    ("steelyard verify events FILE", "that file, on your own machine: chain, arithmetic, sums, a recount"),
)
"""Commands, and what each lets a tenant check."""
