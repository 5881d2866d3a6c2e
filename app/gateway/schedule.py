"""schedule: hands an admitted request to the scheduler, which delivers into the relay."""

from __future__ import annotations

import msgspec

from app.gateway.model import Admission
from app.gateway.ports import Dispatch, Dispatcher, Sink
from app.gateway.upstream import engine_request
from scheduler.model import Demand
from scheduler.transport.model import Deadlines


class Timeouts(msgspec.Struct, frozen=True):
    """Seconds an engine is given: to connect, to its first token, between two pieces, in all."""

    connect_s: float
    first_token_s: float
    idle_s: float
    total_s: float

    def deadlines(self, *, streamed: bool) -> Deadlines:
        """An answer that isn't streamed has its first byte when all of it is generated."""
        return Deadlines(
            connect_s=self.connect_s,
            first_byte_s=min(self.first_token_s, self.total_s) if streamed else self.total_s,
            idle_s=self.idle_s,
            total_s=self.total_s,
        )


class ScheduleDesk:
    """Starts dispatches."""

    def __init__(self, dispatcher: Dispatcher, *, timeouts: Timeouts) -> None:
        self._dispatcher = dispatcher
        self._streamed = timeouts.deadlines(streamed=True)
        self._whole = timeouts.deadlines(streamed=False)

    def start(self, admission: Admission, sink: Sink) -> Dispatch:
        """The dispatch of a request; `sink` hears nothing before this returned."""
        record, ask = admission.record, admission.ask
        demand = Demand(
            request_id=record.request_id,
            deployment_id=record.deployment_id,
            model_id=record.model_id,
            prompt_tokens_bound=record.input_bound,
            max_output_tokens=record.output_bound,
            streamed=ask.streamed,
            fairness_key=record.tenant_id,
        )
        return self._dispatcher.dispatch(
            demand,
            lambda backend: engine_request(admission, backend),
            deadlines=self._streamed if ask.streamed else self._whole,
            sink=sink,
        )
