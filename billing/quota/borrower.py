"""The process' line to the authority: one task that sends one message at a time over one connection.

What happens while a message is under way travels with the next, so any number of waiting requests
costs one round trip. Away from exhaustion that is one message per renewal for all leases together.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable, Sequence

import asyncpg

from app.core.clock import Clock, SystemClock
from app.core.errors import Conflict, DependencyError
from app.core.ids import AllowanceId, IncarnationId
from billing.quota.exchange import Exchange
from billing.quota.lease import Hold
from billing.quota.leases import Leases
from billing.quota.model import Answer, Denied, Need, RatesWhenCutOff
from billing.quota.wire import Wire

log = logging.getLogger(__name__)

_FAREWELLS = 3


class Borrower:
    """Borrows for one incarnation: renews in the background, asks, answers recalls, returns all at the end.

    on_closed: called once if the authority has closed the incarnation (or forgotten a grant): nothing is
    admitted any more, and the process must go on as a new incarnation, with new leases and a new journal.
    """

    def __init__(
        self,
        pool: asyncpg.Pool,
        *,
        leases: Leases,
        incarnation_id: IncarnationId,
        recall_bound_s: float = 0.15,
        lease_renew_s: float = 0.25,
        on_closed: Callable[[], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._wire = Wire(pool, incarnation_id)
        self._leases = leases
        self._exchange = Exchange(leases, recall_bound_s=recall_bound_s, renew_s=lease_renew_s)
        self._on_closed = on_closed
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._exchange.on_work = self._wake.set
        self._exchange.on_closed = self._closed
        self.syncs = self.asks = self.denials = self.failures = 0

    @property
    def cut_off(self) -> bool:
        """True while the authority can't be reached: admission from leases goes on, asks are refused."""
        return self._exchange.cut_off

    @property
    def rates_alone(self) -> RatesWhenCutOff | None:
        """What rates do while the authority is away for longer than their leases last; None: it is not."""
        return self._leases.rates_when_cut_off if self._leases.is_alone else None

    @property
    def busy(self) -> bool:
        """True while a message is under way."""
        return self._exchange.busy

    @property
    def waiting(self) -> int:
        """Requests that wait for an answer or a return."""
        return len(self._exchange.asks)

    async def register(self, host: str | None = None) -> None:
        """Make the incarnation known, as of this machine by default, and begin to borrow. Idempotent.

        Call it when the journal is locked and in place. Raises DependencyError if the authority can't be
        reached and Conflict if it has closed the incarnation already.
        """
        try:
            is_open = await self._wire.register(host or socket.gethostname())
        except Wire.ERRORS as error:
            raise DependencyError("the quota authority can't be reached") from error
        if not is_open:
            raise Conflict("this incarnation was closed before it was registered")
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="quota-borrower")

    def watch(self, needs: Iterable[Need]) -> None:
        """Borrow in the background for needs that are likely to come."""
        for need in needs:
            lease = self._leases.lease(need.allowance_id, need.rate)
            lease.taken += need.amount
            self._leases.activate(lease)
        self._wake.set()

    def notice(self, allowance_id: AllowanceId) -> None:
        """Take a notification `allowance:<id>`: a recall, a return or another limit."""
        self._exchange.notice(allowance_id, now=self._clock.monotonic())

    async def ask(self, needs: Sequence[Need]) -> Hold | Denied:
        """The whole need, waiting for other processes to give back what they don't use; or who lacked.

        needs: not empty, each allowance once. Ends within about one `recall_bound_s` for each allowance
        that lacks. If the caller is cancelled, what it was granted goes back.
        """
        hold = self._leases.admit(needs)
        if hold is not None:
            return hold
        self.asks += 1
        future: asyncio.Future[Hold | Denied] = asyncio.get_running_loop().create_future()
        ask = self._exchange.ask(needs, now=self._clock.monotonic(), resolve=self._resolver(future))
        try:
            outcome = await future
        except asyncio.CancelledError:
            self._give_up(future)
            raise
        finally:
            if ask is not None:
                self._exchange.asks.abandon(ask)
        self.denials += isinstance(outcome, Denied)
        return outcome

    async def close(self) -> None:
        """Clean shutdown: admit nothing more and return all that is free and durable. Idempotent.

        What open holds and settlements still to be posted keep is for the settler.
        """
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self._say_farewell()
        await self._wire.close()

    def _resolver(self, future: asyncio.Future[Hold | Denied]) -> Callable[[Hold | Denied], None]:
        def resolve(outcome: Hold | Denied) -> None:
            if not future.done():
                future.set_result(outcome)
            elif isinstance(outcome, Hold):  # cancelled a moment ago, and nobody will take it
                self._leases.withdraw(outcome)

        return resolve

    def _give_up(self, future: asyncio.Future[Hold | Denied]) -> None:
        if future.done() and not future.cancelled():
            outcome = future.result()
            if isinstance(outcome, Hold):
                self._leases.withdraw(outcome)

    async def _run(self) -> None:
        while not self._leases.closed:
            await self._until_work()
            try:
                await self._converse()
            except Exception:  # the rim of this task: nobody else would refuse those who wait
                log.exception("quota_sync_broke")
                self._failed()

    async def _until_work(self) -> None:
        while not self._exchange.has_work(now=self._clock.monotonic()):
            wake_at = self._exchange.next_wake()
            delay = None if wake_at is None else max(wake_at - self._clock.monotonic(), 0)
            try:
                async with asyncio.timeout(delay):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    async def _converse(self) -> None:
        """One message and its answer. The connection first: what a message gives back is gone."""
        try:
            await self._wire.connect()
            sync = self._exchange.compose(now=self._clock.monotonic())
            if sync is None:
                return
            self.syncs += 1
            answer = await self._wire.send_twice(sync)
        except Wire.ERRORS as error:
            if not self._exchange.cut_off:
                log.warning("quota_cut_off", extra={"error": f"{type(error).__name__}: {error}"})
            self._failed()
        else:
            self._received(answer)

    def _received(self, answer: Answer) -> None:
        if self._exchange.cut_off:
            log.info("quota_reached_again")
        self._exchange.receive(answer, now=self._clock.monotonic())

    def _failed(self) -> None:
        self.failures += 1
        self._exchange.fail(now=self._clock.monotonic())

    async def _say_farewell(self) -> None:
        was_closed = self._leases.closed
        self._failed()
        for _ in range(0 if was_closed else _FAREWELLS):
            try:
                await self._wire.connect()
                answer = await self._wire.send_twice(
                    self._exchange.compose_farewell(now=self._clock.monotonic())
                )
            except Wire.ERRORS:
                self._failed()
            else:
                self._exchange.receive(answer, now=self._clock.monotonic())
                if not self._exchange.has_something_left:
                    return

    def _closed(self) -> None:
        log.error("quota_incarnation_closed")
        if self._on_closed is not None:
            self._on_closed()
