"""How much of an engine's counters its events account for: the model of the differences. Pure.

An engine's counter is not the bill. It counts a prompt once for each answer; it goes on for a moment after an
answer is cut; it forgets what it did before a restart; and of some requests nobody learned the usage. So each
kind of event accounts for a range of tokens, and only what lies beyond the sum of all ranges is unexplained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from billing.metering.model import UsageSource
from billing.reconcile.exposition import Names
from billing.reconcile.model import DayState, EngineMeter, Share

CUT_TAIL = 512
"""Most tokens that an engine makes of one answer after the last that we read: what lies in buffers between
it and a slow client, and what it makes until it learns that the connection is closed."""
LOST_TAIL = 1024
"""Most tokens of one answer that passed between its last progress row and the death of its gateway: two
seconds of a stream of 512 tokens a second."""
COUNTING_SLACK = 64
"""Tokens by which a tokenizer may miss an engine's count of an answer, beside an eighth of it: a template."""


class Place(StrEnum):
    """Where an event lies in the time that is compared."""

    INSIDE = "inside"
    EDGE = "edge"
    """It was running as the comparison begins or ends: any part of it may be counted."""
    HOLE = "hole"
    """It was running while the engine restarted: any part of it may be forgotten."""
    OTHER_ATTEMPT = "other_attempt"
    """It was tried here before it went elsewhere."""
    NOWHERE = "nowhere"
    """Its process died before it wrote down where it sent it: any backend of the deployment may have it."""
    SET_ASIDE = "set_aside"
    """It ran here and is no event: its record was parked, or dismissed."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Events of one backend that are alike, summed.

    whole: they came to their end.   is_billed: any token of theirs is.   choices: answers asked for, of each.
    prompt, output: recorded tokens.   bound_prompt, bound_output: of what nobody reported.
    """

    place: Place
    source: UsageSource
    whole: bool
    is_billed: bool
    choices: int
    requests: int
    prompt: int
    output: int
    bound_prompt: int
    bound_output: int
    billed_prompt: int
    billed_output: int
    lost: int

    @property
    def ran_here(self) -> bool:
        """True if these are the backend's own events, not ones that may have touched it."""
        return self.place not in (Place.OTHER_ATTEMPT, Place.NOWHERE, Place.SET_ASIDE)


_Range = tuple[int, int]

WORDS: Mapping[str, str] = {
    "counted": "reported by the engine and billed: counted to the token",
    "several_choices": "asked for several answers: the engine counts the prompt once for each",
    "not_billed": "reported by the engine, recorded and not billed, because our side failed",
    "cut": "cut before its end: the engine went on until it learned of it",
    "by_tokenizer": "counted by a tokenizer, not by the engine",
    "unknown_usage": "nobody reported its usage: anything up to its bound",
    "window_edge": "running as the comparison began or ended: any part of it",
    "engine_restarted": "running while the engine restarted: what it counted before is forgotten",
    "other_attempt": "tried here before it went to another backend",
    "set_aside": "ran here and is no event: its record was parked, or dismissed",
    "backend_unknown": "its gateway died before it wrote down where it was sent",
}
"""Each kind of share in words."""


def shares(cells: Iterable[Cell], *, meter: EngineMeter, names: Names) -> list[Share]:
    """What each kind of event accounts for on an engine that counts by these names."""
    by_kind: dict[str, Share] = {}
    for cell in cells:
        kind = _kind(cell)
        low, high = _range(cell, meter=meter, names=names)
        so_far = by_kind.get(kind, Share(kind, 0, 0, 0, 0))
        by_kind[kind] = Share(
            kind,
            so_far.requests + cell.requests,
            so_far.recorded + _recorded(cell, meter=meter, names=names),
            so_far.low + low,
            so_far.high + high,
        )
    return [by_kind[kind] for kind in WORDS if kind in by_kind]


def verdict(counted: int | None, explained: Sequence[Share]) -> tuple[DayState, int | None]:
    """What to say of a counter, and the tokens that no share explains: above (+) or below (−) all ranges."""
    if counted is None:
        return DayState.UNKNOWN, None
    low, high = sum(share.low for share in explained), sum(share.high for share in explained)
    if counted > high:
        return DayState.UNATTRIBUTED, counted - high
    if counted < low:
        return DayState.MISSING_AT_ENGINE, counted - low
    return DayState.RECONCILED, 0


def billed_tokens(cells: Iterable[Cell], meter: EngineMeter) -> int:
    """What is billed of events that ran here: each prompt once, however many answers were asked for."""
    here = [cell for cell in cells if cell.ran_here]
    return sum(cell.billed_prompt if meter is EngineMeter.PROMPT else cell.billed_output for cell in here)


def _kind(cell: Cell) -> str:
    match cell.place:
        case Place.EDGE:
            return "window_edge"
        case Place.HOLE:
            return "engine_restarted"
        case Place.OTHER_ATTEMPT:
            return "other_attempt"
        case Place.NOWHERE:
            return "backend_unknown"
        case Place.SET_ASIDE:
            return "set_aside"
    match cell.source:
        case UsageSource.ENGINE_PARTIAL:
            return "cut"
        case UsageSource.TOKENIZER:
            return "by_tokenizer"
        case UsageSource.UNKNOWN:
            return "unknown_usage"
    if not cell.is_billed:
        return "not_billed"
    return "several_choices" if cell.choices > 1 else "counted"


def _range(cell: Cell, *, meter: EngineMeter, names: Names) -> _Range:
    low, high = _RANGES[meter, cell.source](cell, names)
    if cell.place is Place.INSIDE:
        return max(low, 0), high
    if cell.place is Place.OTHER_ATTEMPT and meter is EngineMeter.GENERATED:
        high += _tail(cell)
    return 0, high


def _recorded(cell: Cell, *, meter: EngineMeter, names: Names) -> int:
    if not cell.ran_here:
        return 0
    return cell.output if meter is EngineMeter.GENERATED else cell.prompt * _times(cell, names)[0]


def _times(cell: Cell, names: Names) -> _Range:
    """How often the engine may count one prompt; one that nobody knows may also warm its cache with it."""
    if cell.choices == 1 or names.per_choice is False:
        return 1, 1
    return (cell.choices, cell.choices) if names.per_choice else (1, cell.choices + 1)


def _tail(cell: Cell) -> int:
    return cell.choices * (CUT_TAIL * cell.requests + LOST_TAIL * cell.lost)


def _slack(cell: Cell, tokens: int) -> int:
    return tokens // 8 + COUNTING_SLACK * cell.choices * cell.requests


def _prompt_told(cell: Cell, names: Names) -> _Range:
    least, most = _times(cell, names)
    return cell.prompt * least, cell.prompt * most


def _prompt_cut(cell: Cell, names: Names) -> _Range:
    """Of several answers some may not have begun."""
    return cell.prompt, cell.prompt * _times(cell, names)[1]


def _prompt_tokenized(cell: Cell, names: Names) -> _Range:
    least, most = _prompt_told(cell, names)
    return (least - _slack(cell, least) if cell.whole else 0), most + _slack(cell, most)


def _prompt_unknown(cell: Cell, names: Names) -> _Range:
    return 0, cell.bound_prompt * _times(cell, names)[1]


def _output_told(cell: Cell, names: Names) -> _Range:
    return cell.output, cell.output


def _output_cut(cell: Cell, names: Names) -> _Range:
    return (cell.output if names.counts_cut else 0), cell.output + _tail(cell)


def _output_tokenized(cell: Cell, names: Names) -> _Range:
    slack = _slack(cell, cell.output)
    if cell.whole:
        return cell.output - slack, cell.output + slack
    return (cell.output - slack if names.counts_cut else 0), cell.output + slack + _tail(cell)


def _output_unknown(cell: Cell, names: Names) -> _Range:
    """The bound is narrowed to what a cut answer told, and the engine may have gone on."""
    return 0, cell.bound_output + (0 if cell.whole else _tail(cell))


_PROMPT, _OUTPUT = EngineMeter.PROMPT, EngineMeter.GENERATED
_RANGES: Mapping[tuple[EngineMeter, UsageSource], Callable[[Cell, Names], _Range]] = {
    (_PROMPT, UsageSource.ENGINE): _prompt_told,
    (_PROMPT, UsageSource.ENGINE_PARTIAL): _prompt_cut,
    (_PROMPT, UsageSource.TOKENIZER): _prompt_tokenized,
    (_PROMPT, UsageSource.UNKNOWN): _prompt_unknown,
    (_OUTPUT, UsageSource.ENGINE): _output_told,
    (_OUTPUT, UsageSource.ENGINE_PARTIAL): _output_cut,
    (_OUTPUT, UsageSource.TOKENIZER): _output_tokenized,
    (_OUTPUT, UsageSource.UNKNOWN): _output_unknown,
}
"""The range of one kind of usage, if all of it fell into the time that is compared."""
