"""What the settler tells of itself."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from billing.journal.posting import Posted
from billing.journal.standing import Standing

_PREFIX = "steelyard_settler_"


class SettlerMetrics:
    """Counters and gauges of one settler, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._counters: dict[str, Counter] = {}
        self._taken_over: dict[str, float] = {}
        self.posted = self._counter("posted", "Usage events posted.")
        self.repeats = self._counter("repeats", "Settlements met again that changed nothing.")
        self.refusals = self._counter("refusals", "Refused requests posted.")
        self.conflicts = self._counter("conflicts", "Second settlements of a request that say otherwise.")
        self.parked = self._counter("parked", "Records set aside because they can't be posted.")
        self.lost = self._counter("lost", "Requests settled as lost because their process died.")
        self.displaced = self._counter("displaced", "Journals removed or replaced while they were read.")
        self.retries = self._counter("retries", "Looks that failed and are tried again.")
        self.overruns = self._counter("unleased_posts", "Batches that spent more than was leased for them.")
        self.lag_s = self._gauge("lag_seconds", "Age of the oldest settlement that is not posted.")
        self.journals = self._gauge("journals", "Journals that are read.")
        self.stopped = self._gauge("stopped_journals", "Journals that can't be read on; their leases stay.")
        self.unfreed = self._gauge("unfreed_journals", "Journals whose posted part the disk keeps.")
        self.parked_open = self._gauge("parked_open", "Parked records that nobody resolved.")
        self.damages_open = self._gauge("damages_open", "Damaged places of journals that nobody released.")
        self.uncovered = self._gauge("uncovered_picos", "Use that leases should have covered; must stay 0.")

    def count(self, posted: Posted) -> None:
        """Add what a batch changed."""
        self.posted.inc(posted.events)
        self.repeats.inc(posted.repeats)
        self.refusals.inc(posted.refusals)
        self.conflicts.inc(posted.conflicts)
        self.parked.inc(posted.parked)
        self.overruns.inc(1 if posted.unleased else 0)

    def counts(self) -> dict[str, float]:
        """Where the counters stand."""
        return {name: next(iter(each.collect())).samples[0].value for name, each in self._counters.items()}

    def take_over(self, counts: Mapping[str, float]) -> None:
        """Count what others counted since they last told.   counts: theirs, from their start on."""
        for name, count in counts.items():
            known = self._taken_over.get(name, 0)
            if count > known:
                self._counters[name].inc(count - known)
                self._taken_over[name] = count

    def show(self, standing: Standing) -> None:
        """Tell how many journals there are."""
        self.journals.set(standing.journals)
        self.stopped.set(len(standing.stopped))
        self.unfreed.set(standing.unfreed)

    def render(self) -> bytes:
        """The Prometheus text of all."""
        return generate_latest(self.registry)

    def _counter(self, name: str, help_text: str) -> Counter:
        self._counters[name] = Counter(_PREFIX + name, help_text, registry=self.registry)
        return self._counters[name]

    def _gauge(self, name: str, help_text: str) -> Gauge:
        return Gauge(_PREFIX + name, help_text, registry=self.registry)
