"""How the stand-in behaves: options of the process, knobs of a request, and the faults it can play.

A request's knobs come in the header `x-simulator: fault=die:3 tokens=8`, or anywhere in its text as
`[simulator fault=die:3 tokens=8]`, which passes through any gateway.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

_DIRECTIVE = re.compile(rb"\[simulator ([^\]\"]{1,200})\]")


class FaultKind(StrEnum):
    """What goes wrong. `n` counts chunks (for `status`: it is the status)."""

    STATUS = "status"
    """`status:503`, `status:500`, …: refuse with vLLM's error body."""
    DEAD = "dead"
    """As a vLLM whose core died: 503 from /health, 500 to every request."""
    RESET = "reset"
    """Close the connection without a byte of an answer."""
    HANG = "hang"
    """Never answer."""
    HANG_AFTER_HEAD = "hang_after_head"
    """Send the head and nothing more."""
    STALL = "stall"
    """Fall silent after n chunks."""
    DIE = "die"
    """Cut the connection after n chunks, or in the middle of a JSON body."""
    ERROR = "error"
    """vLLM's error frame after n chunks, then [DONE], within a 200; a 500 if not streamed."""
    NO_USAGE = "no_usage"
    """Report no usage at all."""
    DOUBLE_USAGE = "double_usage"
    """Report usage on the last choice's chunk, and once more after it."""


@dataclass(frozen=True, slots=True)
class Fault:
    kind: FaultKind
    n: int = 0


def parse_fault(text: str) -> Fault:
    """The fault of `kind` or `kind:n`. Raises ValueError if there is no such kind."""
    kind, _, n = text.partition(":")
    return Fault(FaultKind(kind), int(n or 0))


@dataclass(frozen=True, slots=True)
class Options:
    """How the engine behaves unless a request says otherwise.

    tokens: natural length of an answer, its end token included; None: as long as max_tokens allows.
    chunk_ms: time per step; 0 is as fast as can be.   ttft_ms: plus `prefill_ms_per_ktoken` for the
    prompt.   max_num_seqs: run at once; `max_queued` more wait, the rest get 503.   fault_every:
    play `fault` on every n-th request only.   close_after_stream: as llama-server does.
    """

    model: str = "simulated"
    max_model_len: int = 32_768
    tokens: int | None = None
    tokens_per_chunk: int = 1
    chunk_ms: float = 0.0
    ttft_ms: float = 0.0
    prefill_ms_per_ktoken: float = 0.0
    cached: int = 0
    max_num_seqs: int = 1024
    max_queued: int = 1_000_000
    fault: Fault | None = None
    fault_every: int = 1
    multibyte: bool = False
    prompt_details: bool = True
    close_after_stream: bool = False


_NUMBERS = frozenset(("tokens", "tokens_per_chunk", "cached"))
_TIMES = frozenset(("chunk_ms", "ttft_ms"))


def with_knobs(options: Options, *, header: str, body: bytes) -> Options:
    """The options of one request: the engine's own, changed by its knobs. Unknown knobs raise ValueError."""
    found = _DIRECTIVE.search(body) if b"[simulator " in body else None
    text = f"{header} {found[1].decode() if found else ''}"
    if not text.strip():
        return options
    return replace(options, **dict(map(_knob, text.split())))


def _knob(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    if name == "fault":
        return name, parse_fault(value)
    if name in _NUMBERS:
        return name, int(value)
    if name in _TIMES:
        return name, float(value)
    raise ValueError(f"no such knob: {name}")
