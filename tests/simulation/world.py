"""One run: the world of a plan, from its first process to the last journal that is settled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random

from app.core import ids
from app.core.clock import from_ms
from tests.simulation.arena import Arena
from tests.simulation.catalogue import Catalogue
from tests.simulation.client import Call
from tests.simulation.control import ControlHost
from tests.simulation.disk import Disk
from tests.simulation.engine import Engines
from tests.simulation.gateway import GatewayHost
from tests.simulation.hosts import Host, MachineClock, SettlerHost
from tests.simulation.limits import LimitDesk
from tests.simulation.loop import Process, SimLoop, current_process
from tests.simulation.plan import Plan
from tests.simulation.refusals import Refused
from tests.simulation.tally import Tally
from tests.simulation.trace import Trace
from tests.simulation.troubles import Troubles
from tests.simulation.watch import Watch
from tests.simulation.wire import Network, Wired
from tests.simulation.worker import WorkerHost

LIMIT_S = 400.0
"""Virtual time after which a run counts as stuck."""
_POSTED = "SELECT incarnation_id, posted_offset FROM journal_position"
_OPENING_S = 1.5
_CALLS_S, _STOP_S, _SETTLE_S = 40.0, 30.0, 90.0


class World:
    """Everything that one run consists of.   findings: what went wrong, in words, as seen on the way."""

    def __init__(
        self,
        plan: Plan,
        arena: Arena,
        *,
        folder: Path,
        show: Callable[[str], None] | None = None,
    ) -> None:
        self.plan = plan
        self.arena = arena
        self.loop = SimLoop(Random(f"{plan.seed}:loop"))  # type: ignore[abstract]
        self.trace = Trace(self.loop.time, show=show)
        self.clock = MachineClock(self.loop)
        self.disk = Disk(folder, rng=Random(f"{plan.seed}:disk"), trace=self.trace)
        self.watch = Watch(self)
        self.tally = Tally(self.loop.time, on_taken=self.watch.taken)
        self.network = Network(
            self.loop,
            arena,
            rng=Random(f"{plan.seed}:network"),
            trace=self.trace,
            on_change=self.watch.look,
        )
        self.network.slow = plan.slow
        self.network.delivers = plan.delivers
        self.engines = Engines(self.loop, Random(f"{plan.seed}:engines"), self.trace, calm=plan.calm)
        self.catalogue = Catalogue(plan, arena, now=lambda: from_ms(self.clock.now_ms()))
        self.limit_desk = LimitDesk(self.catalogue, plan.caps)
        self.gateways = [GatewayHost(self, f"gateway-{number}") for number in range(plan.gateways)]
        self.settler = SettlerHost(self, "settler", engine=arena.engine("settler", self._dial))
        self.control = ControlHost(self, "control", engine=arena.engine("control", self._dial))
        self.worker = WorkerHost(self, "worker", engine=arena.engine("worker", self._dial))
        self.calls = [Call(number, wish) for number, wish in enumerate(plan.calls)]
        self.ending = False
        self.over = False
        self.deaths = 0
        self.refused: list[Refused] = []
        self._deaths = {(death.who, death.kind, death.number): death for death in plan.deaths}
        self._ids = Random(f"{plan.seed}:ids")

    @property
    def _hosts(self) -> tuple[Host, ...]:
        return *self.gateways, self.settler, self.control, self.worker

    @property
    def findings(self) -> list[str]:
        return self.watch.findings

    def run(self) -> None:
        """Let it happen; what is wrong is in `findings`."""
        with ids.drawn_from(self._new_id):
            self.catalogue.fill()
            self.loop.world.spawn(self._course(), name="course")
            if not self.loop.run_until(lambda: self.over, limit_s=LIMIT_S):
                self.findings.append(f"stuck: the run did not end within {LIMIT_S} virtual seconds")
            self.findings.extend(f"nobody caught: {error}" for error in self.loop.errors)

    def close(self) -> None:
        """Unwind what is left."""
        self.network.over = True
        with ids.drawn_from(self._new_id):
            for process in self.loop.processes:
                process.kill()
            self.loop.bury()
        self.disk.close()

    def moments(self) -> dict[str, dict[str, int]]:
        """How often each kind of moment came, by process: at each of them it may be killed."""
        return {host.name: dict(host.moments) for host in self._hosts}

    def reaper(self, host: Host) -> Callable[[str, int], None]:
        """Decides at each moment of a host's processes whether it is their last."""

        def at_moment(kind: str, number: int) -> None:
            death = self._deaths.pop((host.name, kind, number), None)
            if death is not None and not (self.over or host.process is None):
                self.trace.note(host.name, "dies at", kind, number, "by power" if death.power else "")
                self.kill(host, power=death.power, back_s=death.back_s)

        return at_moment

    def kill(self, host: Host, *, power: bool, back_s: float) -> None:
        """End a host's process; by power all of its machine end, and the disk forgets."""
        self.deaths += 1
        machine: list[Host] = [*self.gateways, self.settler]
        power = power and host in machine
        ends = [each for each in machine if each.alive] if power else [host]
        for each in ends:
            if each.process is not None:
                each.process.kill()
        if power:
            self._look_at_posted()
            self.disk.fail_power()
        for each in ends:
            self.loop.world.post_later(back_s, self.restart, each)

    def _look_at_posted(self) -> None:
        """Nothing is posted that a power cut could take back."""
        for incarnation_id, posted in self.arena.fetch(_POSTED):
            synced = self.disk.synced.get(self.disk.folder / f"{incarnation_id}.journal")
            if synced is not None and posted > synced:
                self.findings.append(f"posted up to {posted}, durable up to {synced}: {incarnation_id[-6:]}")

    def restart(self, host: Host) -> None:
        if not self.over and not (self.ending and host in self.gateways):
            host.start()

    def buried(self, process: Process) -> None:
        """What the kernel, the network and the engines make of a death."""
        self.trace.note(process.name, "is dead")
        self.network.cut(process)
        if process is self.settler.process:
            self.disk.let_readers_go()
        self.disk.let_go(process)

    def tell(self, news: str) -> None:
        """A notification of the database goes to all who listen."""
        for host in self.gateways:
            host.hear(news)

    async def until(self, met: Callable[[], bool], *, within_s: float, what: str) -> bool:
        """Wait for something to become true; a finding if it does not."""
        end = self.loop.time() + within_s
        while not met():
            if self.loop.time() > end:
                self.findings.append(f"stuck: {what} within {within_s} virtual seconds")
                return False
            await asyncio.sleep(0.05)
        return True

    async def _course(self) -> None:
        await self.control.do(self.catalogue.open_wallets)
        await self.control.do(self.limit_desk.open_plans)
        for host in (*self.gateways, self.settler, self.worker):
            host.start()
        await self._opening()
        for call in self.calls:
            self.loop.world.post_later(call.wish.at_s, self._call, call)
        troubles = Troubles(self)
        troubles.schedule()
        await asyncio.sleep(self.plan.span_s)
        await self.until(self._all_answered, within_s=_CALLS_S, what="calls were not over")
        self.ending = True
        troubles.end()
        await self._stop_gateways()
        await self.until(self._all_settled, within_s=_SETTLE_S, what="journals were not settled")
        troubles.make_up_for()
        await self._until_proven()
        self.over = True

    async def _opening(self) -> None:
        """Until the gateways serve, or some are late."""
        end = self.loop.time() + _OPENING_S
        while self.loop.time() < end and not all(host.ready for host in self.gateways):
            await asyncio.sleep(0.01)

    async def _until_proven(self) -> None:
        """Until operators are done, each grant is what its time says, and each line has its link."""
        await self.until(lambda: not self.control.busy, within_s=_SETTLE_S, what="operators were not done")
        now_ms = self.clock.now_ms()

        def proven() -> bool:
            return self.worker.idle_ms is not None and self.worker.idle_ms >= now_ms

        self.worker.idle_ms = None
        await self.until(proven, within_s=_SETTLE_S, what="grants were not turned, or lines not sealed")

    async def _stop_gateways(self) -> None:
        for host, end in zip(self.gateways, self.plan.ends, strict=True):
            if end == "kill" and host.process is not None:
                host.process.kill()
            else:
                host.stop()

        def ended() -> bool:
            for host in self.gateways:
                host.stop()  # one that was still starting
            return not any(host.alive for host in self.gateways)

        await self.until(ended, within_s=_STOP_S, what="gateways did not stop")
        for host in self.gateways:
            if host.process is not None:
                host.process.kill()

    def _all_answered(self) -> bool:
        return all(call.ended or call.left or call.cut or call.refused_connection for call in self.calls)

    def _all_settled(self) -> bool:
        if not self.settler.alive:
            return False
        return not any(self.disk.folder.glob("*.journal"))

    def _call(self, call: Call) -> None:
        connection = self.gateways[call.wish.gateway].serve(call)
        self.trace.note("client", "calls", call.number, call.wish.gateway, connection is not None)
        if connection is not None and call.wish.leaves_s is not None:
            self.loop.world.post_later(call.wish.leaves_s, connection.leave)

    def _new_id(self) -> str:
        at_ms = self.clock.now_ms()
        return f"{at_ms:012x}7{self._ids.getrandbits(76):019x}"

    async def _dial(self) -> Wired:
        return await self.network.connect(current_process())
