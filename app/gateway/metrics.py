"""The gateway's own counters: plain numbers on the hot path, Prometheus text when somebody asks."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from app.core.errors import RejectReason
from app.gateway.model import Admission
from billing.journal.model import Settled
from billing.metering.model import Meter

TTFT_BOUNDS_MS = (5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000, 60000)


class Family(NamedTuple):
    """One metric with its samples: labels → value."""

    name: str
    kind: str
    help: str
    samples: Mapping[tuple[tuple[str, str], ...], float]


Source = Callable[[], Iterable[Family]]


class GatewayMetrics:
    """Counters of one process. `sources` are asked at each render: journal, leases, scheduler, catalogue."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.settlements_not_durable = 0
        self.requests: Counter[tuple[str, str, str]] = Counter()
        self.refusals: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self.unknown_usage = 0
        self.overruns = 0
        self.broken_invariants: Counter[str] = Counter()
        self.sources: list[Source] = []
        self._ttft = [0] * (len(TTFT_BOUNDS_MS) + 1)
        self._ttft_sum_ms = 0

    def refused(self, reason: RejectReason) -> None:
        self.refusals[reason.value] += 1

    def invariant(self, name: str) -> None:
        """Count something that can't happen; the metric that alerts."""
        self.broken_invariants[name] += 1

    def settled(self, admission: Admission, record: Settled) -> None:
        """Count the end of a request."""
        self.in_flight -= 1
        endpoint = admission.record.endpoint
        self.requests[endpoint, record.outcome.value, record.usage_source.value] += 1
        usage = record.usage
        self.tokens["input"] += usage.input
        self.tokens["input_cached"] += usage.input_cached
        self.tokens["input_cache_write"] += usage.input_cache_write
        self.tokens["output"] += usage.output
        if record.unknown_bound is not None:
            self.unknown_usage += 1
        if any(used.used > used.held for used in record.used):
            self.overruns += 1
        if record.ttft_ms is not None:
            self._ttft[bisect_left(TTFT_BOUNDS_MS, record.ttft_ms)] += 1
            self._ttft_sum_ms += record.ttft_ms

    def render(self) -> bytes:
        """All families in Prometheus' text format."""
        lines: list[str] = []
        for family in (*self._own(), *(family for source in self.sources for family in source())):
            lines.append(f"# HELP {family.name} {family.help}")
            lines.append(f"# TYPE {family.name} {family.kind}")
            lines.extend(f"{family.name}{_labels(of)} {value:g}" for of, value in family.samples.items())
        lines.extend(self._histogram())
        return ("\n".join(lines) + "\n").encode()

    def _own(self) -> Iterable[Family]:
        yield gauge(
            "steelyard_requests_in_flight", "Admitted requests that have not ended.", value=self.in_flight
        )
        yield Family(
            "steelyard_requests_total",
            "counter",
            "Admitted requests that ended, by outcome and source of their usage.",
            {
                (("endpoint", endpoint), ("outcome", outcome), ("usage_source", source)): count
                for (endpoint, outcome, source), count in self.requests.items()
            },
        )
        yield Family(
            "steelyard_refusals_total",
            "counter",
            "Requests that were not admitted, by reason.",
            {(("reason", reason),): count for reason, count in self.refusals.items()},
        )
        yield Family(
            "steelyard_tokens_total",
            "counter",
            "Tokens of ended requests, by class; classes are disjoint.",
            {(("class", meter.value),): self.tokens[meter.value] for meter in Meter},
        )
        yield counter(
            "steelyard_usage_unknown_total", "Requests whose usage nobody counted.", value=self.unknown_usage
        )
        yield counter(
            "steelyard_overruns_total", "Requests that used more than was held.", value=self.overruns
        )
        yield counter(
            "steelyard_settlements_not_durable_total",
            "Settlements that the journal could not make durable.",
            value=self.settlements_not_durable,
        )
        yield Family(
            "steelyard_gateway_invariant_total",
            "counter",
            "Things that can't happen; stays 0.",
            {(("invariant", name),): count for name, count in self.broken_invariants.items()} or {(): 0},
        )

    def _histogram(self) -> Iterable[str]:
        name = "steelyard_time_to_first_byte_ms"
        yield f"# HELP {name} From admission to the first byte of the engine's answer."
        yield f"# TYPE {name} histogram"
        total = 0
        for bound, count in zip((*map(str, TTFT_BOUNDS_MS), "+Inf"), self._ttft, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {self._ttft_sum_ms}"
        yield f"{name}_count {total}"


def gauge(name: str, text: str, *, value: float) -> Family:
    """A gauge without labels."""
    return Family(name, "gauge", text, {(): value})


def counter(name: str, text: str, *, value: float) -> Family:
    """A counter without labels."""
    return Family(name, "counter", text, {(): value})


def _labels(pairs: tuple[tuple[str, str], ...]) -> str:
    if not pairs:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in pairs) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
