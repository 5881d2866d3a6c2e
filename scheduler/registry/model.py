"""What the operator says of a backend, what a probe says of it, and what the registry shows of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from app.core.ids import BackendId, DeploymentId


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """One engine process as configured.

    base_url: `http://host:port[/path]`.   engine: `vllm`, `llama-server`, …   served_model: the name
    by which the engine knows the model.   weight: preference, 1 is plain.   draining: finish what runs,
    take nothing new.
    """

    backend_id: BackendId
    deployment_id: DeploymentId
    base_url: str
    engine: str
    served_model: str
    max_concurrent: int
    weight: int = 1
    draining: bool = False

    def same_process(self, other: BackendSpec) -> bool:
        """True if what was learned of the one holds for the other."""
        return (
            self.base_url == other.base_url
            and self.engine == other.engine
            and self.served_model == other.served_model
            and self.deployment_id == other.deployment_id
        )


class ProbeStatus(StrEnum):
    PASSED = "passed"
    REFUSED = "refused"
    """It answered, with an error of its own (5xx)."""
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What one health probe found.   detail: for people, e.g. `status 503` or an error code."""

    status: ProbeStatus
    detail: str = ""
    latency_ms: float | None = None


class Health(StrEnum):
    """A backend's state in one word, as shown to operators."""

    READY = "ready"
    UNKNOWN = "unknown"
    OVERLOADED = "overloaded"
    TRIAL = "trial"
    EJECTED = "ejected"
    DEAD = "dead"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class BackendSnapshot:
    """One backend's live state, for metrics and for people; None means unknown.

    pending_work: output-token equivalents.   idle_s fields are ages in seconds.
    """

    backend_id: BackendId
    deployment_id: DeploymentId
    engine: str
    health: Health
    in_flight: int
    max_concurrent: int
    pending_work: float
    ms_per_work: float | None
    consecutive_failures: int
    times_ejected: int
    last_probe: ProbeStatus | None
    last_probe_detail: str
    last_probe_age_s: float | None
