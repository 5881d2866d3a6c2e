"""`/corrections`: what was given back or charged for single requests, as rows of their own."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec
from fastapi import Depends, Query
from pydantic import Field

from app.control.call import Call, Reads, WritesMoney
from app.control.reach import tenant_within
from app.control.schemas import In, Money, Name, Out, Page, PagingQuery, picos
from app.control.views.routes import router
from app.core.ids import RequestId, TenantId
from app.core.money import format_picos
from app.identity.errors import invalid
from app.identity.model import Scope
from billing.ledger import corrections
from billing.ledger.corrections import Asked
from billing.ledger.model import BilledTokens, Correction

api = router("corrections")
_Id = Annotated[str | None, Query(max_length=200)]
_Tokens = Annotated[int, Field(ge=-(10**12), le=10**12)]


class TokensIn(In):
    """By how much the billed tokens of each class change; negative: fewer."""

    input: _Tokens = 0
    input_cached: _Tokens = 0
    input_cache_write: _Tokens = 0
    output: _Tokens = 0


class CorrectionIn(In):
    amount: Money | None = Field(
        None, description="More than zero goes back, less is charged; null: what the tokens are worth."
    )
    tokens: TokensIn | None = Field(
        None, description="Priced at the request's own rates. Null: the tokens stand, only money moves."
    )
    reason: Name = Field(examples=["The engine counted its answer twice"])
    reference: Name | None = Field(
        None, description="What is corrected once per tenant; null: the Idempotency-Key."
    )


class TokensOut(Out):
    """By how much the billed tokens of each class changed."""

    input: int
    input_cached: int
    input_cache_write: int
    output: int


class CorrectionOut(Out):
    """A correction of one request's charge; the request's own record stands as it was."""

    id: str
    request_id: str
    tenant_id: str
    amount: str = Field(description="More than zero went back to the tenant, less was charged.")
    currency: str
    tokens: TokensOut
    reason: str
    reference: str
    transaction_id: str
    created_by: str
    at: datetime


@api.post("/requests/{request_id}/corrections", status_code=201, summary="Correct what a request costs")
async def create_correction(
    request_id: str, body: CorrectionIn, call: Annotated[Call, Depends(WritesMoney(Scope.CREDIT_WRITE))]
) -> CorrectionOut:
    """Give back some or all of a request's cost; or charge more, by tokens, up to what it was held for."""
    if body.amount is None and body.tokens is None:
        invalid("A correction says an amount, or by how many tokens the charge changes.", param="amount")
    tokens = body.tokens or TokensIn()
    asked = Asked(
        request_id=RequestId(request_id),
        reason=body.reason,
        reference=body.reference or f"{call.actor.id}:{call.idempotency_key}",
        created_by=call.actor.id,
        amount=None if body.amount is None else picos(body.amount),
        tokens=BilledTokens(**{f"billed_{meter}": count for meter, count in tokens.model_dump().items()}),
    )
    shown = _correction(await corrections.correct(call.connection, asked, now=call.now))
    call.trail.note(
        "request.correct", request_id, tenant_id=shown.tenant_id, after=shown.model_dump(mode="json")
    )
    return shown


@api.get("/corrections", summary="List corrections, newest first")
async def list_corrections(
    paging: PagingQuery,
    call: Annotated[Call, Depends(Reads(Scope.REQUESTS_READ))],
    *,
    tenant_id: _Id = None,
    request_id: _Id = None,
) -> Page[CorrectionOut]:
    tenant = tenant_within(call, tenant_id)
    rows = await corrections.list_corrections(
        call.connection,
        tenant_id=None if tenant is None else TenantId(tenant),
        request_id=None if request_id is None else RequestId(request_id),
        before=paging.after,
        limit=paging.fetch,
    )
    return paging.page(rows, _correction)


def _correction(made: Correction) -> CorrectionOut:
    facts = msgspec.structs.asdict(made)
    tokens = {name: facts.pop(f"billed_{name}") for name in TokensOut.model_fields}
    return CorrectionOut(**{**facts, "amount": format_picos(made.amount), "tokens": TokensOut(**tokens)})
