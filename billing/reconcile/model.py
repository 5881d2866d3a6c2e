"""The words of reconciliation: pairs of books, the gaps between them, and what an engine counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum

from app.core.ids import BackendId, DeploymentId, ModelId


class Pair(StrEnum):
    """Two books that tell the same. Each is one query, which finds no row when all is well."""

    JOURNAL_EVENTS = "journal_events"
    """What was settled and is no event: parked records, dead processes whose journal is not posted."""
    CONFLICTS = "conflicts"
    """Second settlements of a request that say something else, by the day on which they came."""
    EVENTS_ROLLUPS = "events_rollups"
    """Events and corrections against the 15-minute sums, by day of admission (of posting: corrections)."""
    EVENTS_LINKS = "events_links"
    """Events and corrections against their links and what waits for one, by the same days."""
    EVENTS_LEDGER = "events_ledger"
    """The cost of the events of a transaction against its entries, by day of posting."""
    CORRECTIONS_LEDGER = "corrections_ledger"
    """Each correction against the entries of its transaction, by day of posting."""
    GRANTS_LEDGER = "grants_ledger"
    """What moved a wallet's limit against the wallet's entries, by day of posting."""
    DOUBLE_ENTRY = "double_entry"
    """Each transaction has all its entries, and they sum to zero, by day of posting."""
    LEDGER_WALLETS = "ledger_wallets"
    """Each wallet's balance by grants and events, by the ledger, and by its allowance."""
    LEASES_ALLOWANCES = "leases_allowances"
    """What allowances spent against what leases settled; nothing lent by the dead, nothing beyond a limit."""
    ENGINE_EVENTS = "engine_events"
    """What each engine counted against its events, by day."""

    @property
    def stands(self) -> bool:
        """True if the pair has no day: it is looked at as it stands now."""
        return self in _STANDING


_STANDING = frozenset({Pair.JOURNAL_EVENTS, Pair.LEDGER_WALLETS, Pair.LEASES_ALLOWANCES})


class Unit(StrEnum):
    PICOS = "picos"
    TOKENS = "tokens"
    RECORDS = "records"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Where two books differ.

    scope: what differs, the same words for the same thing in every proof.   kind: its class, in one word.
    left, right: what each book says, in `unit`, in the order of the pair's name; None: nothing at all.
    """

    pair: Pair
    scope: str
    unit: Unit
    kind: str
    left: int | None
    right: int | None
    explanation: str
    tenant_id: str | None = None
    backend_id: str | None = None
    model_id: str | None = None

    @property
    def difference(self) -> int:
        return (self.left or 0) - (self.right or 0)


@dataclass(frozen=True, slots=True)
class Proof:
    """One look at one pair.   day: None for a pair that stands.   scanned: rows that the query read.

    is_cut: there may be more gaps than are told.
    """

    pair: Pair
    day: date | None
    gaps: Sequence[Gap]
    scanned: int
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class Engine:
    """A backend as reconciliation knows it.   engine: the software: vllm, sglang, llama-server, …"""

    backend_id: BackendId
    deployment_id: DeploymentId
    model_id: ModelId
    model_name: str
    engine: str
    base_url: str
    served_model: str
    is_removed: bool


@dataclass(frozen=True, slots=True)
class Counters:
    """What an engine's page says it has done since its process began; None: it doesn't say.

    process: tells one process from the next, if it does.   prompt: tokens of prompts, cached ones too.
    generated: output tokens.   finished: answers that came to an end.
    """

    process: str | None = None
    prompt: int | None = None
    cached: int | None = None
    generated: int | None = None
    finished: int | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters of a backend at a moment."""

    at: datetime
    counters: Counters


class EngineMeter(StrEnum):
    """What is compared with an engine's counters."""

    PROMPT = "prompt"
    GENERATED = "generated"


class DayState(StrEnum):
    RECONCILED = "reconciled"
    UNATTRIBUTED = "unattributed"
    """The engine counted more than its events explain: something bypasses the gateway, or is not recorded."""
    MISSING_AT_ENGINE = "missing_at_engine"
    """The events hold more than the engine says it did."""
    UNKNOWN = "unknown"
    """The engine doesn't say what it did."""


@dataclass(frozen=True, slots=True)
class Share:
    """How much of the counters a kind of events accounts for.

    recorded: the tokens that the events say.   low, high: what the engine may have counted of them.
    """

    kind: str
    requests: int
    recorded: int
    low: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDay:
    """A backend's day against its events, in tokens, for one meter.

    begins_at, ends_at: the readings between which was compared; days tile without gap or overlap.
    counted: by the engine; None: unknown.   recorded: by the events, as this engine counts.
    billed: of those, once per request.   unexplained: what no share accounts for; signed.
    """

    day: date
    backend_id: BackendId
    meter: EngineMeter
    model_id: ModelId
    model_name: str
    state: DayState
    begins_at: datetime | None
    ends_at: datetime | None
    readings: int
    restarts: int
    counted: int | None
    recorded: int
    billed: int
    explained: Sequence[Share]
    unexplained: int | None
    requests: int
    lost: int
    is_final: bool
