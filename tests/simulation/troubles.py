"""What goes wrong, or changes, in the course of a run, besides deaths."""

from __future__ import annotations

import shutil
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any

from app.core.clock import from_ms
from billing.ledger.model import Terms
from tests.simulation.plan import Trouble

if TYPE_CHECKING:
    from tests.simulation.gateway import GatewayHost
    from tests.simulation.world import World

_DAY_MS = 24 * 3600 * 1000


class Troubles:
    """The troubles of a plan, and their end."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._over = False
        self._put_off: list[Trouble] = []

    def schedule(self) -> None:
        for trouble in self._world.plan.troubles:
            self._world.loop.world.post_later(trouble.at_s, self._begin, trouble)

    def end(self) -> None:
        """From now on all is well, so that what was written can be settled."""
        self._over = True
        world = self._world
        world.network.come_back()
        world.network.slow = 0.0
        world.disk.full = False
        world.restart(world.settler)

    def make_up_for(self) -> None:
        """Correct what was not there to be corrected."""
        put_off, self._put_off = self._put_off, []
        for trouble in put_off:
            self._correction(trouble)

    def _begin(self, trouble: Trouble) -> None:
        if not self._over:
            self._world.trace.note("trouble", trouble.what, trouble.lasts_s, trouble.amount)
            getattr(self, f"_{trouble.what}")(trouble)

    def _later(self, trouble: Trouble, act: Any, *args: Any) -> None:
        self._world.loop.world.post_later(trouble.lasts_s, act, *args)

    def _database_away(self, trouble: Trouble) -> None:
        self._world.network.go_away()
        self._later(trouble, self._database_back)

    def _database_back(self) -> None:
        self._world.network.come_back()

    def _disk_full(self, trouble: Trouble) -> None:
        disk = self._world.disk
        disk.full = True
        self._later(trouble, lambda: setattr(disk, "full", False))

    def _frozen(self, trouble: Trouble) -> None:
        hosts = [*self._world.gateways, self._world.settler]
        process = hosts[trouble.which % len(hosts)].process
        if process is not None:
            process.frozen_until = self._world.loop.time() + trouble.lasts_s

    def _clock_jump(self, trouble: Trouble) -> None:
        """The wall clock is set: by seconds, or over the end of the day."""
        step_ms = _DAY_MS if trouble.which % 5 == 0 else round(trouble.lasts_s * 4000)
        self._world.clock.offset_ms += step_ms if trouble.amount > 0 else -step_ms

    def _news_lost(self, trouble: Trouble) -> None:
        gateways = self._world.gateways
        host = gateways[trouble.which % len(gateways)]
        host.deaf_until = self._world.loop.time() + trouble.lasts_s
        self._later(trouble, self._find_out, host)

    def _find_out(self, host: GatewayHost) -> None:
        """It is noticed that the connection on which news come is a dead one."""
        if host.process is not None:
            self._world.network.end_listening(host.process)

    def _limit(self, trouble: Trouble) -> None:
        catalogue = self._world.catalogue
        self._operate(catalogue.set_limit, which=trouble.which, amount=trouble.amount)

    def _grant(self, trouble: Trouble) -> None:
        reference = f"at {trouble.at_s}"
        self._operate(
            self._world.catalogue.grant, which=trouble.which, amount=trouble.amount, reference=reference
        )

    def _dated_grant(self, trouble: Trouble) -> None:
        """Some start later, some burn before others, all of them end soon."""
        now_ms = self._world.clock.now_ms()
        in_ms = 300 if trouble.which % 3 == 0 else 0
        terms = Terms(
            priority=50 if trouble.which % 2 else 100,
            starts_at=from_ms(now_ms + in_ms) if in_ms else None,
            expires_at=from_ms(now_ms + round(trouble.lasts_s * 1000)),
        )
        self._operate(
            self._world.catalogue.grant,
            which=trouble.which,
            amount=trouble.amount,
            reference=f"dated {trouble.at_s}",
            terms=terms,
        )

    def _correction(self, trouble: Trouble) -> None:
        """Of an event that there is by then, or else of one at the end."""
        found = self._world.arena.fetch("SELECT request_id FROM usage_event WHERE cost > 0 ORDER BY 1")
        if not found:
            self._put_off.append(trouble)
            return
        self._operate(
            self._world.catalogue.correct,
            request_id=found[trouble.which % len(found)][0],
            charges=trouble.amount < 0,
            reference=f"correction {trouble.at_s}",
        )

    def _price(self, trouble: Trouble) -> None:
        in_ms = 500 if trouble.which % 2 else 0
        self._operate(self._world.catalogue.change_prices, now_ms=self._world.clock.now_ms(), in_ms=in_ms)

    def _operate(self, operation: Any, **named: Any) -> None:
        self._world.control.enqueue(update_wrapper(partial(operation, **named), operation))

    def _plan_limits(self, trouble: Trouble) -> None:
        self._operate(self._world.limit_desk.scale_plan, percent=trouble.amount)

    def _override(self, trouble: Trouble) -> None:
        override = self._world.limit_desk.override
        self._operate(override, which=trouble.which, percent=trouble.amount, lasts_s=trouble.lasts_s)

    def _plan_change(self, trouble: Trouble) -> None:
        self._operate(self._world.limit_desk.change_plan, which=trouble.which)

    def _task_budget(self, trouble: Trouble) -> None:
        self._operate(self._world.limit_desk.set_task_budget, which=trouble.which, percent=trouble.amount)

    def _settler_away(self, trouble: Trouble) -> None:
        settler = self._world.settler
        if settler.process is not None and settler.alive:
            self._world.kill(settler, power=False, back_s=trouble.lasts_s)

    def _position_back(self, trouble: Trouble) -> None:
        """The settler dies, and the next one reads and posts all journals again from an older position."""
        self._settler_away(trouble)
        older = "0" if trouble.which % 3 else "resume_offset"
        self._world.arena.execute(
            f"UPDATE journal_position SET posted_offset = {older}, resume_offset = {older}"
            f" WHERE posted_offset > {older}"
        )

    def _journal_copied(self, trouble: Trouble) -> None:
        """Somebody puts an archived journal back, to be posted once more from its beginning."""
        folder = self._world.disk.folder
        archived = sorted((folder / "closed").glob("*.journal"))
        if not archived:
            return
        path = archived[trouble.which % len(archived)]
        if (folder / path.name).exists():
            return
        self._world.arena.execute(
            "DELETE FROM journal_position WHERE incarnation_id = $1", path.name.removesuffix(".journal")
        )
        shutil.copyfile(path, folder / path.name)
        self._world.disk.synced[folder / path.name] = path.stat().st_size
        self._world.trace.note("trouble", "put back", path.name[-14:])
