"""The laws that hold at every instant, looked at after each change of the database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.arena import Standing

if TYPE_CHECKING:
    from tests.simulation.world import World


class Watch:
    """Looks after every commit.   over_limit: how often more was taken than a limit allows."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._before: dict[str, Standing] = {}
        self.findings: list[str] = []
        self.over_limit = 0
        self.looks = 0
        self.limits: dict[str, list[tuple[int, int]]] = {}
        """By allowance, every limit that it had, and since when, in milliseconds of the run."""
        self.most_of_rate: dict[str, tuple[int, int]] = {}
        """By allowance of a rate, the most that its bucket ever held, and that it ever got in a minute."""

    def look(self) -> None:
        """Pass on what was notified, and compare what is committed and lent with the limits."""
        world = self._world
        self.looks += 1
        heard, standings = world.arena.look()
        for news in heard:
            world.tell(news)
        for standing in standings:
            limits = self.limits.setdefault(standing.allowance_id, [])
            if not limits or limits[-1][1] != standing.limit:
                limits.append((round(world.loop.time() * 1000), standing.limit))
            if standing.is_rate:
                burst, per_minute = self.most_of_rate.get(standing.allowance_id, (0, 0))
                most = max(burst, standing.burst), max(per_minute, standing.limit)
                self.most_of_rate[standing.allowance_id] = most
            self._check(standing, self._before.get(standing.allowance_id))
            self._before[standing.allowance_id] = standing

    def taken(self, allowance_id: str, amount: int) -> None:
        """A request takes so much: with all that is used and held, it is no more than the limit allows."""
        known = self._before.get(allowance_id)
        if known is None or known.is_wallet:
            return
        most = max(limit for _, limit in self.limits[allowance_id])
        taken = self._world.tally.taken(allowance_id, posted=known.spent - known.unleased)
        if taken > most:
            self.over_limit += 1
            self.findings.append(
                f"over the limit: {allowance_id[-6:]} has {taken} of {most} in use by {amount}"
            )

    def _check(self, now: Standing, before: Standing | None) -> None:
        name = now.allowance_id[-6:]
        if now.taken > now.most and (before is None or now.taken > before.taken):
            self.over_limit += 1
            self.findings.append(f"over the limit: {name} has {now.taken} of {now.most} taken")
        if now.uncovered:
            self.findings.append(f"over the limit: {name} was used without a lease by {now.uncovered}")
        lent = 0
        for host in self._world.gateways:
            lease = host.leases.find(now.allowance_id) if host.alive else None  # type: ignore[arg-type]
            if lease is None or (now.is_rate and self._world.loop.time() >= lease.ends_at):
                continue
            lent += lease.free + lease.held
            if lease.free < 0 or lease.free + lease.held + lease.covered + lease.returned != lease.granted:
                self.findings.append(f"{host.name}'s lease of {name} does not add up")
        if lent > now.outstanding:
            self.over_limit += 1
            self.findings.append(
                f"over the limit: processes have {lent} of {name}, lent are {now.outstanding}"
            )
