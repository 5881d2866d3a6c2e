"""What the stand-in counted: the truth against which metering and billing are checked."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

MAX_REMEMBERED = 10_000


@dataclass(slots=True)
class Served:
    """One request's count.   outcome: `running`, `stop`, `length`, `abort` or `error`."""

    prompt_tokens: int
    generated_tokens: int = 0
    outcome: str = "running"


@dataclass(slots=True)
class Stats:
    """Totals since the start, and the last requests by their `x-request-id`.

    prompt_tokens: of each request once.   computed_tokens: of prompts, once for each answer, as vLLM counts.
    """

    prompt_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    running: int = 0
    waiting: int = 0
    refused: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    requests: dict[str, Served] = field(default_factory=dict)
    started_s: float = field(default_factory=time.time)

    def admitted(self, request_id: str, prompt_tokens: int, *, times: int = 1) -> Served:
        served = Served(prompt_tokens)
        self.prompt_tokens += prompt_tokens
        self.computed_tokens += prompt_tokens * times
        self.requests[request_id] = served
        if len(self.requests) > MAX_REMEMBERED:
            del self.requests[next(iter(self.requests))]
        return served

    def generated(self, served: Served, tokens: int) -> None:
        served.generated_tokens += tokens
        self.generated_tokens += tokens

    def ended(self, served: Served, outcome: str) -> None:
        served.outcome = outcome
        self.outcomes[outcome] += 1

    def as_json(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "generated_tokens": self.generated_tokens,
            "running": self.running,
            "waiting": self.waiting,
            "refused": self.refused,
            "aborted": self.outcomes["abort"],
            "completed": self.outcomes["stop"] + self.outcomes["length"],
            "outcomes": dict(self.outcomes),
            "requests": self.requests,
        }

    def as_metrics(self, model: str, max_num_seqs: int) -> bytes:
        """Prometheus text with vLLM's names."""
        label = f'engine="0",model_name="{model}"'
        rows = [
            ("num_requests_running", "gauge", "", self.running),
            ("num_requests_waiting", "gauge", "", self.waiting),
            ("kv_cache_usage_perc", "gauge", "", self.running / max_num_seqs),
            ("prompt_tokens_total", "counter", "", self.computed_tokens),
            ("generation_tokens_total", "counter", "", self.generated_tokens),
        ]
        started = "process_start_time_seconds"
        lines = [f"# TYPE {started} gauge", f"{started} {self.started_s}"]
        for name, kind, _, value in rows:
            lines += [f"# TYPE vllm:{name} {kind}", f"vllm:{name}{{{label}}} {float(value)}"]
        lines.append("# TYPE vllm:request_success_total counter")
        for reason in ("stop", "length", "abort", "error"):
            labels = f'engine="0",finished_reason="{reason}",model_name="{model}"'
            lines.append(f"vllm:request_success_total{{{labels}}} {float(self.outcomes[reason])}")
        return ("\n".join(lines) + "\n").encode()
