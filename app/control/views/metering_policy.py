"""`/metering-policy` for programs and `/metering` for people: what is counted, what is billed, what is free.

Both are made from the table that settles requests. The page needs no login: it says nothing of anybody.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic import Field
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from app.control.call import Call, Reads
from app.control.measure import CHECKS, CLASSES, FREE, OUTCOMES, SOURCES
from app.control.schemas import Out
from app.control.views.routes import router
from app.identity.model import Scope
from billing.metering.model import Meter, Outcome, UsageSource
from billing.metering.policy import BILLED

api = router("usage")
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none';"
        " frame-ancestors 'none'"
    ),
    "cache-control": "public, max-age=300",
}


class TokenClass(Out):
    """One class of token. The classes are disjoint: their sum is the whole."""

    meter: Meter
    means: str
    counted: str = Field(description="When, and how often.")


class OutcomeRow(Out):
    outcome: Outcome
    means: str


class SourceRow(Out):
    usage_source: UsageSource
    means: str


class BilledRow(Out):
    """The classes that are billed of a request that ended so and was counted so; none: it is free."""

    outcome: Outcome
    usage_source: UsageSource
    meters: list[Meter]


class MeteringPolicy(Out):
    """The policy in force. `billed` has a row for every pair of outcome and source."""

    classes: list[TokenClass]
    outcomes: list[OutcomeRow]
    usage_sources: list[SourceRow]
    billed: list[BilledRow]
    free: list[str] = Field(description="What is never charged, in words.")


def policy() -> MeteringPolicy:
    """The policy in force, in the order of its tables."""
    return MeteringPolicy(
        classes=[
            TokenClass(meter=meter, means=words.means, counted=words.counted)
            for meter, words in CLASSES.items()
        ],
        outcomes=[OutcomeRow(outcome=outcome, means=means) for outcome, means in OUTCOMES.items()],
        usage_sources=[SourceRow(usage_source=source, means=means) for source, means in SOURCES.items()],
        billed=[
            BilledRow(
                outcome=outcome, usage_source=source, meters=[meter for meter in Meter if meter in meters]
            )
            for outcome, by_source in BILLED.items()
            for source, meters in by_source.items()
        ],
        free=list(FREE),
    )


@api.get("/metering-policy", summary="What is counted, what is billed, what is free")
async def show_policy(call: Annotated[Call, Depends(Reads(Scope.USAGE_READ))]) -> MeteringPolicy:
    return policy()


async def show_page(request: Request) -> Response:
    """The policy as a public page of plain HTML."""
    text = _TEMPLATES.get_template("metering.html").render(
        policy=policy(), words_of=_words_of, sources=list(UsageSource), rows=_rows(), checks=CHECKS
    )
    return HTMLResponse(text, headers=_HEADERS)


def _rows() -> list[dict[str, Any]]:
    """The table as people read it: a row for each outcome, a cell for each source."""
    return [
        {"outcome": outcome, "means": means, "cells": [_cell(BILLED[outcome][each]) for each in UsageSource]}
        for outcome, means in OUTCOMES.items()
    ]


def _cell(meters: frozenset[Meter]) -> str:
    if len(meters) == len(Meter):
        return "all"
    return ", ".join(_words_of(meter) for meter in Meter if meter in meters) or "free"


def _words_of(name: str) -> str:
    return name.replace("_", " ")


_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parents[1] / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
