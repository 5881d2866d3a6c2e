"""admission: all or nothing, from memory. Holds the most that the request can cost at prices pinned now."""

from __future__ import annotations

from app.catalog.snapshot import Model, Snapshot
from app.core.clock import Clock
from app.core.errors import Rejected, RejectReason
from app.core.ids import AllowanceId, RequestId
from app.core.money import format_picos
from app.gateway.model import Admission, Ask, Principal
from app.gateway.ports import Borrower, Journal, Leases
from billing.journal.model import Admitted, Held
from billing.metering.bounds import input_bound, output_bound
from billing.quota.lease import Hold
from billing.quota.model import Denied, Need
from billing.rating.model import bound
from billing.rating.schedule import Pinned


class AdmissionDesk:
    """Admits requests against their tenant's wallet."""

    def __init__(
        self, snapshot: Snapshot, *, leases: Leases, borrower: Borrower, journal: Journal, clock: Clock
    ) -> None:
        self._snapshot = snapshot
        self._leases = leases
        self._borrower = borrower
        self._journal = journal
        self._clock = clock
        self.asks = 0

    async def admit(
        self, ask: Ask, *, request_id: RequestId, principal: Principal, model: Model
    ) -> Admission:
        """The admission of a request, its hold taken and its record in the journal (not awaited).

        Raises Rejected: 402 if the wallet can't cover it, 503 without a price, a wallet or a journal.
        No round trip unless the process' own lease lacks.
        """
        if not self._journal.writable:
            raise Rejected(
                RejectReason.JOURNAL_UNWRITABLE,
                "Requests can't be recorded at the moment.",
                status=503,
                retry_after_s=1.0,
            )
        pinned = self._pin(principal, model)
        max_tokens = min(ask.max_tokens or model.default_output_tokens, model.max_output_tokens)
        record = self._record(
            ask,
            request_id=request_id,
            principal=principal,
            model=model,
            pinned=pinned,
            max_tokens=max_tokens,
        )
        needs = tuple(Need(held.allowance_id, held.amount) for held in record.holds)
        hold = self._leases.admit(needs)
        if hold is None:
            self.asks += 1
            hold = self._granted(await self._borrower.ask(needs), needs, currency=record.currency)
        self._journal.append(record)
        return Admission(record, hold, ask, principal, model, max_tokens)

    def _pin(self, principal: Principal, model: Model) -> Pinned:
        book_id = self._snapshot.price_book(principal.tenant)
        pinned = None
        if book_id is not None:
            pinned = self._snapshot.fleet.schedule.pin(book_id, model.model_id, at_ms=self._clock.now_ms())
        if pinned is None:
            raise Rejected(
                RejectReason.PRICE_MISSING,
                "The model has no price for this tenant, so it can't be served.",
                status=503,
            )
        return pinned

    def _record(
        self,
        ask: Ask,
        *,
        request_id: RequestId,
        principal: Principal,
        model: Model,
        pinned: Pinned,
        max_tokens: int,
    ) -> Admitted:
        most_input = input_bound(
            len(ask.body),
            rendered_bytes=ask.rendered_bytes,
            prompts=ask.prompts,
            context_limit=model.context_limit,
            is_text=ask.is_text,
        )
        most_output = output_bound(max_tokens, choices=ask.choices * ask.prompts)
        if ask.echo:
            most_output += most_input * ask.choices
        hold = bound(input_tokens=most_input, output_tokens=most_output, rates=pinned.rates)
        return Admitted(
            request_id=request_id,
            at_ms=self._clock.now_ms(),
            tenant_id=principal.tenant.tenant_id,
            project_id=principal.key.project_id,
            key_id=principal.key.key_id,
            model_id=model.model_id,
            model_name=model.name,
            deployment_id=model.deployment_id,
            endpoint=ask.endpoint.value,
            streamed=ask.streamed,
            currency=principal.tenant.currency,
            price_version_id=pinned.version_id,
            rates=pinned.rates,
            input_bound=most_input,
            output_bound=most_output,
            choices=ask.choices,
            prompts=ask.prompts,
            holds=(Held(_wallet(principal), hold),),
        )

    def _granted(self, outcome: Hold | Denied, needs: tuple[Need, ...], *, currency: str) -> Hold:
        if isinstance(outcome, Hold):
            return outcome
        needed = next(need.amount for need in needs if need.allowance_id == outcome.allowance_id)
        message = "The balance of the wallet does not cover the most that this request can cost."
        if outcome.cut_off:
            message = "The balance can't be checked at the moment, and this gateway holds too little of it."
        raise Rejected(
            RejectReason.BALANCE_TOO_LOW,
            message,
            status=503 if outcome.cut_off else 402,
            limit=format_picos(outcome.limit),
            observed=format_picos(outcome.limit - outcome.available),
            retry_after_s=outcome.retry_after_s,
            available=format_picos(outcome.available),
            needed=format_picos(needed),
            currency=currency,
        )


def _wallet(principal: Principal) -> AllowanceId:
    allowance_id = principal.tenant.wallet_allowance_id
    if allowance_id is None:
        raise Rejected(
            RejectReason.BALANCE_TOO_LOW, "The tenant has no wallet.", status=402, limit="0", observed="0"
        )
    return allowance_id
