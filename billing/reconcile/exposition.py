"""Reads an engine's metrics page, whatever its names are: an alias table per engine. Pure.

What the page doesn't say, or says as no whole number or beyond reason, is unknown and never 0. Counters of
several ranks of one engine are summed; those of other models on the same page are left out.
Source: vLLM `v1/metrics/loggers.py`, llama.cpp `tools/server`, SGLang `metrics/collector.py`; real pages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from billing.reconcile.model import Counters

_SAMPLE = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})?[ \t]+(\S+)(?:[ \t]+-?\d+)?[ \t]*$")
_MODEL = re.compile(r'(?:^|,)\s*model_name="((?:[^"\\]|\\.)*)"')
_PROCESS = re.compile(r"[!-~]{1,64}")
_LARGEST = 1 << 53
"""From here on a float, which such a page is made of, no longer counts by ones; nor does a sum of several."""


@dataclass(frozen=True, slots=True)
class Names:
    """Where an engine says what. Several names of one counter: the first that is there.

    cached_apart: its prompt counter leaves the cached part out.   per_choice: it counts a prompt once for
    each answer (`n`); None: nobody knows.   counts_cut: it counts what it made of an answer that was cut.
    """

    prompt: tuple[str, ...]
    cached: tuple[str, ...]
    generated: tuple[str, ...]
    finished: tuple[str, ...]
    cached_apart: bool = False
    per_choice: bool | None = True
    counts_cut: bool = True


_VLLM = Names(
    prompt=("vllm:prompt_tokens_total", "vllm:prompt_tokens"),
    cached=("vllm:prompt_tokens_cached_total", "vllm:prefix_cache_hits_total"),
    generated=("vllm:generation_tokens_total", "vllm:generation_tokens"),
    finished=("vllm:request_success_total", "vllm:request_success"),
)
ENGINES: Mapping[str, Names] = {
    "vllm": _VLLM,
    "simulator": _VLLM,
    "sglang": Names(
        prompt=("sglang:prompt_tokens_total", "sglang:prompt_tokens"),
        cached=("sglang:cached_tokens_total", "sglang:cached_tokens"),
        generated=("sglang:generation_tokens_total", "sglang:generation_tokens"),
        finished=("sglang:num_requests_total", "sglang:num_requests"),
        per_choice=None,
    ),
    "llama-server": Names(
        prompt=("llamacpp:prompt_tokens_total",),
        cached=("llamacpp:prompt_tokens_cached_total",),
        generated=("llamacpp:tokens_predicted_total",),
        finished=(),
        cached_apart=True,
        per_choice=None,
        counts_cut=False,
    ),
}
"""By the engine's name in the catalogue. One that isn't here has no counters that we know."""


def read_page(page: str, names: Names, *, served_model: str, process: str | None = None) -> Counters:
    """The counters on a page. Never raises.   process: from the answer's head, if the engine says it so."""
    samples: dict[str, dict[str | None, int | None]] = {}
    wanted = {name for group in _groups(names) for name in group}
    for line in page.splitlines():
        if line.startswith("process_start_time_seconds "):
            process = line.partition(" ")[2].strip()
        found = _SAMPLE.match(line) if line[:1] != "#" else None
        if found is not None and found[1] in wanted:
            _add(samples.setdefault(found[1], {}), model=_model(found[2]), value=_count(found[3]))
    prompt, cached, generated, finished = (
        _pick(samples, group, served_model=served_model) for group in _groups(names)
    )
    if names.cached_apart and prompt is not None:
        prompt = None if cached is None else prompt + cached
    known = process if _PROCESS.fullmatch(process or "") else None
    return Counters(known, prompt, cached, generated, finished)


def _groups(names: Names) -> tuple[tuple[str, ...], ...]:
    return names.prompt, names.cached, names.generated, names.finished


def _add(by_model: dict[str | None, int | None], *, model: str | None, value: int | None) -> None:
    """One unknown part makes the sum unknown, and so does a sum without bounds."""
    so_far = by_model.get(model, 0)
    total = None if so_far is None or value is None else so_far + value
    by_model[model] = None if total is None or total >= _LARGEST else total


def _pick(
    samples: Mapping[str, Mapping[str | None, int | None]], names: tuple[str, ...], *, served_model: str
) -> int | None:
    """The served model's counter; the page's only one if it goes by another name; else unknown."""
    by_model = next((samples[name] for name in names if name in samples), {})
    if served_model in by_model:
        return by_model[served_model]
    return next(iter(by_model.values())) if len(by_model) == 1 else None


def _model(labels: str | None) -> str | None:
    found = _MODEL.search(labels or "")
    return None if found is None else re.sub(r"\\(.)", r"\1", found[1])


def _count(text: str) -> int | None:
    """A whole number, however a page spells it: `6288.0`, `6.288e+03`."""
    try:
        value = Decimal(text)
    except InvalidOperation:
        return None
    is_count = value.is_finite() and 0 <= value < _LARGEST and value == value.to_integral_value()
    return int(value) if is_count else None
