"""Words shared by the shapes of the API: names, money, moments, pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Generic, Protocol, TypeVar

from fastapi import Depends, Query
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from app.core.money import Picos, parse_picos, parse_price

T = TypeVar("T")
_PRINTABLE = r"^[^\x00-\x1f\x7f]+$"

Name = Annotated[
    str, StringConstraints(min_length=1, max_length=200, strip_whitespace=True, pattern=_PRINTABLE)
]
Text = Annotated[str, StringConstraints(max_length=500, pattern=r"^[^\x00-\x1f\x7f]*$")]
Identifier = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=_PRINTABLE)]
Currency = Annotated[str, StringConstraints(pattern=r"^[A-Z]{3}$")]


def _in_utc(moment: datetime) -> datetime:
    if not 1970 < moment.year < 9999:  # a day more in any zone, and a bucket more, are still moments
        raise ValueError("a moment lies between 1971 and 9998")
    return moment.astimezone(UTC)


Moment = Annotated[AwareDatetime, AfterValidator(_in_utc)]


def _is_money(text: str) -> str:
    parse_picos(text)
    return text


def _is_price(text: str) -> str:
    parse_price(text)
    return text


Money = Annotated[
    str,
    Field(max_length=40, description="A decimal string in units of the currency.", examples=["12.50"]),
    AfterValidator(_is_money),
]
PriceText = Annotated[
    str,
    Field(max_length=20, description="Units of the currency per million tokens.", examples=["0.54"]),
    AfterValidator(_is_price),
]


def picos(money: str) -> Picos:
    """The picos of a validated amount."""
    return parse_picos(money)


class In(BaseModel):
    """A request body: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class Patch(In):
    """A body whose absent fields stay as they are; null is for the fields in `nullable` only."""

    nullable: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _refuse_null(cls, data: Any) -> Any:
        nulls = [name for name, value in data.items() if value is None] if isinstance(data, dict) else []
        if any(name not in cls.nullable for name in nulls):
            raise ValueError(f"{nulls[0]} can't be null")
        return data

    def changes(self) -> dict[str, Any]:
        """The fields that were sent."""
        return self.model_dump(exclude_unset=True)


class Out(BaseModel):
    """A response body, made from what a service returns."""

    model_config = ConfigDict(from_attributes=True)


class Page(BaseModel, Generic[T]):
    """One page of a list. `next`: pass it as `after` to get the following page."""

    data: list[T]
    has_more: bool
    next: str | None


class HasId(Protocol):
    @property
    def id(self) -> str: ...


Row = TypeVar("Row", bound=HasId)


class Paging(BaseModel):
    """Which page of a list is asked for."""

    limit: int
    after: str | None

    @property
    def fetch(self) -> int:
        """Rows to fetch: one more than shown tells whether there are more."""
        return self.limit + 1

    def page(self, rows: Sequence[Row], present: Callable[[Row], T]) -> Page[T]:
        """The page made of at most `fetch` rows."""
        shown = rows[: self.limit]
        more = len(rows) > self.limit
        return Page(data=[present(row) for row in shown], has_more=more, next=shown[-1].id if more else None)


def _paging(
    limit: Annotated[int, Query(ge=1, le=500, description="Most rows of a page.")] = 50,
    after: Annotated[str | None, Query(max_length=200, description="`next` of the page before.")] = None,
) -> Paging:
    return Paging(limit=limit, after=after)


PagingQuery = Annotated[Paging, Depends(_paging)]


def text_of(moment: datetime | None) -> str | None:
    """A moment as ISO 8601 in UTC with a `Z`."""
    return None if moment is None else moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
