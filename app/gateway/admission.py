"""admission: all or nothing over every limit of the request, from memory; prices and periods pinned now.

A request holds the most that it can use. Where that does not fit, its input is counted exactly, and where
the project allows it, it is given less output; else it is refused, and nothing was taken anywhere.
"""

from __future__ import annotations

from typing import TypeGuard

from app.catalog.snapshot import Model, Snapshot
from app.core.clock import Clock
from app.core.errors import Rejected, RejectReason
from app.core.ids import RequestId
from app.gateway import refusals
from app.gateway.draft import Draft
from app.gateway.model import Admission, Ask, Headers, Principal
from app.gateway.ports import Borrower, ExactCounter, Journal, Leases
from app.gateway.rate_headers import rate_headers
from app.gateway.refusals import Refusals
from app.gateway.tasks import Task
from app.gateway.terms import Terms, TermsBook
from billing.quota.lease import Hold
from billing.quota.model import Denied, Need
from billing.rating.schedule import Pinned

_MOST_CLAMPS = 3
"""Tries with less output: each answers to another limit, or to one that others drew on meanwhile."""


class AdmissionDesk:
    """Admits requests against their tenant's wallet and all limits in force."""

    def __init__(
        self,
        snapshot: Snapshot,
        *,
        leases: Leases,
        borrower: Borrower,
        journal: Journal,
        clock: Clock,
        counter: ExactCounter,
        money_status: int = 429,
    ) -> None:
        self._snapshot = snapshot
        self._leases = leases
        self._borrower = borrower
        self._journal = journal
        self._clock = clock
        self._counter = counter
        self._book = TermsBook()
        self._refusals = Refusals(money_status=money_status)
        self.asks = self.clamped = self.exact_counts = 0

    async def admit(
        self,
        ask: Ask,
        *,
        request_id: RequestId,
        principal: Principal,
        model: Model,
        task: Task | None = None,
    ) -> Admission:
        """The admission of a request, its holds taken and its record in the journal (not awaited).

        Raises Rejected: by the first limit that lacks, without having taken anything; 503 without a price
        or a journal. No round trip unless the process' own leases lack.
        """
        draft = self._draft(ask, request_id=request_id, principal=principal, model=model, task=task)
        terms = draft.terms
        if terms.max_output is not None or terms.max_context is not None:
            await self._keep_to_ceilings(draft)
        needs = draft.needs()
        hold = self._leases.admit(needs)
        if hold is None:
            self.asks += 1
            hold, needs = await self._ask(draft, needs)
        if draft.is_exact:
            self._consume_input(draft, hold)
        record = draft.record(needs)
        self._journal.append(record)
        for each in terms.at_once:
            self._leases.consume(hold, each.allowance_id, total=1)
        headers = self._headers(draft)
        return Admission(record, hold, ask, principal, model, draft.max_tokens, terms.rates, headers)

    def _draft(
        self, ask: Ask, *, request_id: RequestId, principal: Principal, model: Model, task: Task | None
    ) -> Draft:
        if not self._journal.writable:
            raise Rejected(
                RejectReason.JOURNAL_UNWRITABLE,
                "Requests can't be recorded at the moment.",
                status=503,
                retry_after_s=1.0,
            )
        at_ms = self._clock.now_ms()
        return Draft(
            ask,
            request_id=request_id,
            principal=principal,
            model=model,
            terms=self._terms(principal, model, at_ms=at_ms),
            pinned=self._pin(principal, model, at_ms=at_ms),
            task=task,
            at_ms=at_ms,
        )

    def _terms(self, principal: Principal, model: Model, *, at_ms: int) -> Terms:
        wallet = principal.tenant.wallet_allowance_id
        if wallet is None:
            raise self._refusals.no_wallet()
        key = principal.key
        limits = self._snapshot.limits(key, model.model_id, at_ms=at_ms)
        return self._book.of(
            limits, key_id=key.key_id, model_id=model.model_id, tenant_id=key.tenant_id, wallet=wallet
        )

    def _pin(self, principal: Principal, model: Model, *, at_ms: int) -> Pinned:
        book_id = self._snapshot.price_book(principal.tenant)
        pinned = None
        if book_id is not None:
            pinned = self._snapshot.fleet.schedule.pin(book_id, model.model_id, at_ms=at_ms)
        if pinned is None:
            raise Rejected(
                RejectReason.PRICE_MISSING,
                "The model has no price for this tenant, so it can't be served.",
                status=503,
            )
        return pinned

    async def _keep_to_ceilings(self, draft: Draft) -> None:
        """Lower what is asked for to what one request may have, or refuse it."""
        clamps = self._clamps(draft)
        output = draft.terms.max_output
        if output is not None and not draft.lower_output(output.amount, by="max_output", clamps=clamps):
            raise refusals.above_output_ceiling(output, draft.max_tokens)
        context = draft.terms.max_context
        if context is None or draft.lower_context(context.amount, clamps=clamps):
            return
        await self._count(draft)
        if not draft.lower_context(context.amount, clamps=clamps):
            needed = draft.input_bound + draft.max_tokens
            raise refusals.above_context_ceiling(context, needed, is_exact=draft.is_exact)

    async def _ask(self, draft: Draft, needs: tuple[Need, ...]) -> tuple[Hold, tuple[Need, ...]]:
        """The holds of a request that the own leases don't cover, and what it needs in the end."""
        clamps = self._clamps(draft)
        outcome = await self._borrower.ask(needs)
        if _may_shrink(outcome) and draft.might_fit(outcome, clamps=clamps) and await self._count(draft):
            needs = draft.needs()
            outcome = await self._borrower.ask(needs)
        for _ in range(_MOST_CLAMPS if clamps else 0):
            if not _may_shrink(outcome) or not draft.clamp(outcome, self._leases.standing):
                break
            needs = draft.needs()
            outcome = await self._borrower.ask(needs)
        if isinstance(outcome, Denied):
            raise self._lacking(draft, outcome, needs=needs)
        return outcome, needs

    async def _count(self, draft: Draft) -> bool:
        """Count the input exactly; False if that changed nothing."""
        if draft.is_exact:
            return False
        self.exact_counts += 1
        tokens = await self._counter.count(draft.ask, draft.model)
        return tokens is not None and draft.take_count(tokens)

    def _lacking(self, draft: Draft, denied: Denied, *, needs: tuple[Need, ...]) -> Rejected:
        needed = next(need.amount for need in needs if need.allowance_id == denied.allowance_id)
        refusal = self._refusals.lacking(
            denied,
            draft.drawn_on(denied.allowance_id),
            needed=needed,
            currency=draft.principal.tenant.currency,
            now_ms=self._clock.now_ms(),
        )
        if draft.terms.shows_rates:
            refusal.headers = rate_headers(draft.terms, self._leases.standing)
        return refusal

    def _consume_input(self, draft: Draft, hold: Hold) -> None:
        """Tell rates of the input at once where it is known; else they hear of it from the engine."""
        for each in draft.terms.rates:
            if each.counts_input:
                self._leases.consume(hold, each.allowance_id, total=draft.input_bound)

    def _headers(self, draft: Draft) -> Headers:
        terms = draft.terms
        headers = rate_headers(terms, self._leases.standing) if terms.shows_rates else []
        if draft.clamped_by is not None:
            self.clamped += 1
            told = f"{draft.max_tokens}; clamped-by={draft.clamped_by}"
            headers.append((b"x-steelyard-max-tokens", told.encode()))
        return headers

    def _clamps(self, draft: Draft) -> bool:
        return self._snapshot.clamps_output(draft.principal.key.project_id)


def _may_shrink(outcome: Hold | Denied) -> TypeGuard[Denied]:
    """True if asking for less may help: it was denied, by an authority that can be asked."""
    return isinstance(outcome, Denied) and not outcome.cut_off
