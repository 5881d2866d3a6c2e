"""How the API writes limits: what is counted in which window, amounts exact, models by name or id."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field, StrictInt
from sqlalchemy.ext.asyncio import AsyncConnection

from app.catalog import models
from app.control.schemas import Identifier, In, Out
from app.core.ids import ModelId
from app.core.money import format_picos, parse_picos
from app.identity.errors import invalid, not_found
from billing.quota.terms import PlanLimit, Scope, Subject, What, Window

_UNITS = {
    "tokens": "tokens",
    "input_tokens": "input tokens",
    "output_tokens": "output tokens",
    "requests": "requests",
    "concurrent": "requests at once",
    "max_output": "output tokens of a request",
    "max_context": "tokens of a request",
}


def _is_amount(amount: int | str) -> int | str:
    parse_picos(str(amount))
    return amount


AmountIn = Annotated[
    StrictInt | Annotated[str, Field(max_length=40)],
    AfterValidator(_is_amount),
    Field(examples=[40_000], description="Whole; of money a decimal string in units of the currency."),
]
WhatField = Annotated[
    What, Field(description="What is counted; `picos` is money, in units of the tenant's currency.")
]
WindowField = Annotated[
    Window,
    Field(
        description="`day`, `week`, `month` of the tenant's calendar; `minute`: a rate; `running`: how many"
        " at once; `request`: a ceiling on one request."
    ),
]


class LimitTerms(In):
    """What is limited, for what, and to how much."""

    what: WhatField
    window: WindowField
    model: Identifier | None = Field(None, description="Id or name; null: all models together.")
    burst: AmountIn | None = Field(
        None, description="Of a rate, the most at once; null: as much as a minute's."
    )


class LimitIn(LimitTerms):
    amount: AmountIn


class PlanLimitIn(LimitIn):
    level: Scope = Field(description="For the tenant as a whole, for each project, or for each key.")


class PlanLimitOut(Out):
    """One limit of a plan."""

    level: str
    what: str
    window: str
    model_id: str | None
    model: str | None
    amount: str
    burst: str | None
    unit: str


def amount_of(given: int | str | None, *, what: str, param: str = "amount") -> int | None:
    """The picos or whole number that was written. Raises Rejected (400) if it can't be."""
    if given is None or (isinstance(given, int) and what != "picos"):
        return given
    text = str(given)
    if what == "picos":
        return parse_picos(text)
    if not (text.isascii() and text.isdigit()):
        invalid(f"{what} are counted in whole numbers.", param=param)
    return int(text)


def text_of_amount(amount: int | None, *, what: str) -> str | None:
    """An amount as it is shown: exact; None stays None."""
    if amount is None:
        return None
    return format_picos(amount) if what == "picos" else str(amount)


def unit_of(what: str, *, currency: str | None) -> str:
    """What an amount counts, in words; of money its currency."""
    return _UNITS.get(what) or currency or "money"


def subject_of(terms: LimitTerms, scope_kind: Scope, *, model_id: ModelId | None) -> Subject:
    return Subject(scope_kind, terms.what, terms.window, model_id)


async def model_of(connection: AsyncConnection, asked: str | None) -> ModelId | None:
    """The id of a model by id or name. Raises Rejected (404) if there is none."""
    if asked is None:
        return None
    found = await models.resolve_models(connection, {asked})
    return found.get(asked) or not_found("model", asked)


async def plan_limits_of(connection: AsyncConnection, limits: Iterable[PlanLimitIn]) -> list[PlanLimit]:
    """The limits that were written. Raises Rejected if one can't be."""
    return [
        PlanLimit(
            subject=subject_of(each, each.level, model_id=await model_of(connection, each.model)),
            amount=amount_of(each.amount, what=each.what) or 0,
            burst=amount_of(each.burst, what=each.what, param="burst"),
        )
        for each in limits
    ]


async def names_for(connection: AsyncConnection, subjects: Iterable[Subject]) -> Mapping[str, str]:
    """The names of the models that some limits are for, by id."""
    asked = {each.model_id for each in subjects if each.model_id is not None}
    return await models.names_of(connection, asked) if asked else {}


def shown_subject(subject: Subject, names: Mapping[str, str]) -> dict[str, Any]:
    """The fields that say what is limited."""
    model_id = subject.model_id
    return {
        "what": subject.what,
        "window": subject.window,
        "model_id": model_id,
        "model": None if model_id is None else names.get(model_id),
    }


def shown_limit(limit: PlanLimit, names: Mapping[str, str], *, currency: str | None) -> PlanLimitOut:
    what = limit.subject.what
    amount = text_of_amount(limit.amount, what=what)
    assert amount is not None
    return PlanLimitOut(
        level=limit.subject.scope_kind,
        **shown_subject(limit.subject, names),
        amount=amount,
        burst=text_of_amount(limit.burst, what=what),
        unit=unit_of(what, currency=currency),
    )
