"""What the metrics page tells of the rooms around: journal, leases, scheduler, catalogue, access log."""

from __future__ import annotations

from collections.abc import Iterable

from app.catalog.snapshot import Snapshot
from app.gateway.access_log import AccessLog
from app.gateway.admission import AdmissionDesk
from app.gateway.metrics import Family, Source, counter, gauge
from app.gateway.progress import Running
from app.gateway.tasks import TaskDesk
from app.gateway.tokenizer import TokenCounter
from billing.journal.writer import JournalWriter
from billing.quota.borrower import Borrower
from billing.quota.leases import Leases
from scheduler.dispatch import Dispatcher
from scheduler.registry.model import Health
from scheduler.registry.service import Registry


def sources_of(
    *,
    journal: JournalWriter,
    leases: Leases,
    borrower: Borrower,
    registry: Registry,
    dispatcher: Dispatcher,
    snapshot: Snapshot,
    access_log: AccessLog,
    running: Running,
    tokens: TokenCounter,
) -> list[Source]:
    """A source of metric families for each room."""
    return [
        lambda: _of_journal(journal),
        lambda: _of_quota(leases, borrower),
        lambda: _of_backends(registry),
        lambda: _of_dispatcher(dispatcher),
        lambda: _of_tokens(tokens),
        lambda: _of_rest(snapshot, access_log, running=running),
    ]


def admission_source(desk: AdmissionDesk, tasks: TaskDesk) -> Source:
    """What admission did beyond its own leases."""

    def source() -> Iterable[Family]:
        yield counter(
            "steelyard_clamped_requests_total",
            "Requests admitted with less output than they asked for.",
            value=desk.clamped,
        )
        yield counter(
            "steelyard_exact_counts_total",
            "Requests whose input an engine was asked to count before they were admitted or refused.",
            value=desk.exact_counts,
        )
        yield counter(
            "steelyard_task_lookups_total", "Tasks made or looked up in the database.", value=tasks.opened
        )

    return source


def _of_journal(journal: JournalWriter) -> Iterable[Family]:
    yield gauge(
        "steelyard_journal_writable", "1 while the journal takes records.", value=int(journal.writable)
    )
    yield gauge("steelyard_journal_backlog", "Records not yet written to disk.", value=journal.backlog)
    yield gauge("steelyard_journal_bytes", "What the journal takes of the disk.", value=journal.held_bytes)
    yield counter("steelyard_journal_records_total", "Records written.", value=journal.records)
    yield counter("steelyard_journal_groups_total", "Groups committed.", value=journal.groups)


def _of_quota(leases: Leases, borrower: Borrower) -> Iterable[Family]:
    yield gauge(
        "steelyard_quota_cut_off", "1 while the quota authority can't be reached.", value=borrower.cut_off
    )
    yield Family(
        "steelyard_quota_rates_alone",
        "gauge",
        "1 while limits per minute go by `rates_when_cut_off`, as the label says.",
        {(("mode", leases.rates_when_cut_off),): int(leases.is_alone)},
    )
    yield counter("steelyard_quota_syncs_total", "Messages to the quota authority.", value=borrower.syncs)
    yield counter(
        "steelyard_quota_asks_total", "Requests that waited for the authority.", value=borrower.asks
    )
    yield counter("steelyard_quota_denials_total", "Requests that it denied.", value=borrower.denials)
    yield counter("steelyard_quota_failures_total", "Messages that failed.", value=borrower.failures)
    yield gauge("steelyard_leases", "Allowances of which this process has a lease.", value=len(leases))
    yield gauge(
        "steelyard_leases_holding",
        "Of these, the ones of which running requests hold something.",
        value=sum(lease.held > 0 for lease in leases),
    )
    yield gauge(
        "steelyard_leases_active", "Of these, the ones that a renewal looks at.", value=len(leases.active)
    )


def _of_backends(registry: Registry) -> Iterable[Family]:
    backends = registry.snapshot()
    ids = {backend.backend_id: (("backend_id", str(backend.backend_id)),) for backend in backends}
    yield Family(
        "steelyard_backend_in_flight",
        "gauge",
        "Requests of this process at a backend.",
        {ids[backend.backend_id]: backend.in_flight for backend in backends},
    )
    yield Family(
        "steelyard_backend_ready",
        "gauge",
        "1 if the backend's last probe passed and its requests go well.",
        {ids[backend.backend_id]: int(backend.health is Health.READY) for backend in backends},
    )
    yield Family(
        "steelyard_backend_ejections_total",
        "counter",
        "Times that a backend was taken out of use.",
        {ids[backend.backend_id]: backend.times_ejected for backend in backends},
    )


def _of_dispatcher(dispatcher: Dispatcher) -> Iterable[Family]:
    totals = dispatcher.metrics.snapshot()
    yield counter("steelyard_dispatches_total", "Requests given to the scheduler.", value=totals.dispatches)
    yield Family(
        "steelyard_attempts_total",
        "counter",
        "Tries at backends that ended, by outcome.",
        {
            (("backend_id", str(backend_id)), ("outcome", outcome.value)): count
            for (backend_id, outcome), count in totals.attempts.items()
        },
    )
    yield Family(
        "steelyard_retries_total",
        "counter",
        "Requests tried elsewhere, by what caused it.",
        {(("cause", outcome.value),): count for outcome, count in totals.retries.items()},
    )


def _of_tokens(tokens: TokenCounter) -> Iterable[Family]:
    yield Family(
        "steelyard_token_counts_total",
        "counter",
        "Counts of what an engine left uncounted, by way and result.",
        {(("way", way), ("result", result)): count for (way, result), count in tokens.counts.items()},
    )
    yield Family(
        "steelyard_tokenizer_loads_total",
        "counter",
        "Files of models' own tokenizers that were read, or could not be.",
        {(("result", result),): count for result, count in tokens.loads.items()},
    )


def _of_rest(snapshot: Snapshot, access_log: AccessLog, *, running: Running) -> Iterable[Family]:
    yield gauge("steelyard_buffered_bytes", "Bytes that wait for slow clients.", value=running.buffered_bytes)
    yield Family(
        "steelyard_catalog_entries",
        "gauge",
        "Entries of the catalogue in memory.",
        {(("kind", kind),): count for kind, count in snapshot.counts().items()},
    )
    yield gauge(
        "steelyard_catalog_loaded_ms", "Unix time of the last full load.", value=snapshot.loaded_ms or 0
    )
    yield counter(
        "steelyard_access_log_dropped_total", "Log lines dropped for a slow disk.", value=access_log.dropped
    )
