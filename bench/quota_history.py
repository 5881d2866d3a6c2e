"""What happened to a buyer's requests: the gateways' notes joined to the events in the books."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from bench.quota_buyers import Buyer
from bench.quota_judge import Lack, Span, Talk
from bench.quota_notes import Admitted, Ended, Message, Refused, Taken, read
from bench.quota_stack import Life, Stack

_EVENTS = """SELECT request_id, tenant_id, outcome, cost::text AS cost, posted_at,
  billed_input + billed_input_cached + billed_input_cache_write + billed_output AS tokens
FROM usage_event WHERE tenant_id = ANY($1)"""


class Event(msgspec.Struct, frozen=True):
    """A usage event.   cost: picos.   tokens: all that was billed."""

    request_id: str
    tenant_id: str
    outcome: str
    cost: int
    posted_ns: int
    tokens: int


@dataclass
class Claim:
    """What one request took, of all its allowances."""

    life: Life
    taken: Taken
    ended: Ended | None = None
    admitted: Admitted | None = None


@dataclass
class History:
    """All claims and refusals of some buyers, and their events by request."""

    claims: list[Claim] = field(default_factory=list)
    refused: list[tuple[Life, Refused]] = field(default_factory=list)
    messages: dict[str, list[Message]] = field(default_factory=dict)
    events: dict[str, Event] = field(default_factory=dict)

    @property
    def admitted(self) -> list[Claim]:
        return [claim for claim in self.claims if claim.admitted is not None]

    @property
    def committed(self) -> int:
        """What the books have, in picos."""
        return sum(event.cost for event in self.events.values())

    def spans(self, allowance_id: str, *, what: str) -> list[Span]:
        """What was taken of an allowance of `picos`, `tokens`, `requests` or `concurrent`."""
        return [
            self._span(claim, needed, what=what)
            for claim in self.claims
            for allowance, needed in claim.taken.needs
            if allowance == allowance_id
        ]

    def lacks(self, allowance_id: str) -> list[Lack]:
        """The refusals for want of an allowance."""
        return [
            Lack(each.began_ns, each.ended_ns, each.needed, life.incarnation_id)
            for life, each in self.refused
            if each.allowance_id == allowance_id and each.needed is not None and each.status != 503
        ]

    @property
    def cut_off(self) -> int:
        """Refusals because the authority could not be reached."""
        return sum(each.status == 503 for _, each in self.refused)

    def talks(self, allowance_id: str) -> dict[str, list[Talk]]:
        """What each process told the authority of an allowance, and heard."""
        return {
            process: [Talk(each.sent_ns, each.answered_ns, each.out.get(allowance_id)) for each in messages]
            for process, messages in self.messages.items()
        }

    def admission_us(self) -> list[float]:
        """CPU of the admissions that did not wait."""
        notes = [claim.admitted for claim in self.admitted]
        return [note.cpu_ns / 1000 for note in notes if note is not None and note.cpu_ns is not None]

    def waits_ms(self) -> list[float]:
        """How long requests waited for others' leases, those too that were refused then."""
        notes = [claim.admitted for claim in self.admitted]
        served = [note.waited_ns / 1e6 for note in notes if note is not None and note.waited_ns is not None]
        lacked = [(each.ended_ns - each.began_ns) / 1e6 for _, each in self.refused if each.allowance_id]
        return served + lacked

    def unmatched(self) -> int:
        """Admissions without an event, events without an admission, ends that the books tell otherwise.

        Of a killed gateway, the last moments may be in no journal: those requests were answered to nobody.
        """
        noted = {claim.admitted.request_id: claim for claim in self.claims if claim.admitted is not None}
        written = {name for name, claim in noted.items() if claim.life.killed_ns is None}
        missing = len(written - self.events.keys()) + len(self.events.keys() - noted.keys())
        return missing + sum(self._differs(claim, self.events.get(name)) for name, claim in noted.items())

    def _differs(self, claim: Claim, event: Event | None) -> bool:
        """True if the gateway freed a wallet but for another sum than was posted."""
        wallet = claim.taken.needs[0][0]
        if event is None or claim.ended is None or event.outcome == "lost":
            return False
        return claim.ended.used[wallet] != event.cost

    def _span(self, claim: Claim, needed: int, *, what: str) -> Span:
        ended, admitted = claim.ended, claim.admitted
        if ended is not None:
            used = 0 if ended.withdrawn else self._used(claim, what=what)
            return Span(claim.taken.at_ns, ended.at_ns, needed, used)
        event = self.events.get(admitted.request_id) if admitted is not None else None
        died_ns = claim.life.killed_ns
        if event is None or what == "concurrent":
            return Span(claim.taken.at_ns, died_ns, needed, 0)
        if what == "picos":
            return Span(claim.taken.at_ns, event.posted_ns, needed, event.cost)
        return Span(claim.taken.at_ns, died_ns, needed, 1 if what == "requests" else event.tokens)

    def _used(self, claim: Claim, *, what: str) -> int:
        """As the books have it, which is what counts; a claim that no event tells of used what it noted."""
        event = self.events.get(claim.admitted.request_id) if claim.admitted is not None else None
        if event is None:
            return 0
        return {"picos": event.cost, "tokens": event.tokens, "requests": 1, "concurrent": 0}[what]


async def history_of(stack: Stack, buyers: Sequence[Buyer]) -> History:
    """All that is known of these buyers' requests, once all is posted."""
    history = History()
    mine, wallets = {b.tenant_id for b in buyers}, {b.wallet for b in buyers}
    for life in stack.all_lives():
        _read_life(life, history, mine=mine, wallets=wallets)
    for row in await stack.books.fetch(_EVENTS, list(mine)):
        history.events[row["request_id"]] = Event(
            row["request_id"],
            row["tenant_id"],
            row["outcome"],
            int(row["cost"]),
            round(row["posted_at"].timestamp() * 1e6) * 1000,
            row["tokens"],
        )
    return history


def split(history: History, buyers: Sequence[Buyer]) -> dict[str, History]:
    """The same for each buyer alone, by tenant."""
    tenants = {buyer.wallet: buyer.tenant_id for buyer in buyers}
    found = {str(buyer.tenant_id): History(messages=history.messages) for buyer in buyers}
    for claim in history.claims:
        found[tenants[claim.taken.needs[0][0]]].claims.append(claim)
    for life, each in history.refused:
        found[each.tenant_id].refused.append((life, each))
    for name, event in history.events.items():
        found[event.tenant_id].events[name] = event
    return found


def _read_life(life: Life, history: History, *, mine: Iterable[Any], wallets: Iterable[str]) -> None:
    claims: dict[int, Claim] = {}
    for note in read(life.notes):
        match note:
            case Taken():
                if note.needs[0][0] in wallets:
                    claims[note.number] = Claim(life, note)
            case Ended() if note.number in claims:
                claims[note.number].ended = note
            case Admitted() if note.number in claims:
                claims[note.number].admitted = note
            case Message():
                history.messages.setdefault(life.incarnation_id, []).append(note)
            case Refused() if note.tenant_id in mine:
                history.refused.append((life, note))
    history.claims += claims.values()


def quantile(values: Sequence[float], q: float) -> float | None:
    """The q-quantile, rounded to tenths; None of nothing."""
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(q * len(ordered)))], 1) if ordered else None
