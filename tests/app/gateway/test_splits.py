"""Every recorded stream, cut between any two bytes: the same bytes to the client, the same record.

Reads end anywhere: in a character, in a number, in `[DONE]`. What the network did must not be told from
what is billed. Streams that an engine broke off are among them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import pytest

from app.gateway.dialect import dialect_of
from app.gateway.event_stream import EventStream
from app.gateway.model import UsageWish
from app.gateway.spoken import Said
from billing.journal.model import Settled
from billing.metering.convert import Report
from billing.metering.model import Outcome
from tests.app.gateway.captures import streams
from tests.app.gateway.stage import BACKEND, SSE, stage

_STREAMS = streams()
_LONG_BYTES = 8000
_OPTIONS = {
    UsageWish.NONE: {},
    UsageWish.FINAL: {"stream_options": {"include_usage": True}},
    UsageWish.EVERY: {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
}


class Outlook(NamedTuple):
    """All that an event stream can tell at its end."""

    relayed: bytes
    report: Report | None
    finish_reason: str | None
    state: tuple[bool, bool, bool]
    said: tuple[Said, ...] | None


def _engine(name: str) -> str:
    return "llama-server" if "llama" in name.partition("/")[0] else "vllm"


def _choices(name: str) -> int:
    return 2 if "_n2" in name or "_batch" in name else 1


def _outlook(name: str, wish: UsageWish, *pieces: bytes) -> Outlook:
    choices = _choices(name)
    stream = EventStream(
        wish=wish,
        choices=choices,
        choices_per_prompt=1 if "_batch" in name else choices,
        dialect=dialect_of(_engine(name)),
        rename=(b'"model":"smollm2-135m-instruct"', b'"model":"nice/name"'),
    )
    leaving = b"".join(map(stream.feed, pieces))
    stream.close()
    transcript = stream.transcript()
    return Outlook(
        leaving + b"".join(stream.held),
        stream.report(),
        stream.finish_reason,
        (stream.done, stream.finished, stream.failure is not None),
        None if transcript is None else transcript.said(),
    )


@pytest.mark.parametrize("wish", UsageWish)
@pytest.mark.parametrize("name", _STREAMS)
def test_every_cut_in_two_is_unseen(name: str, wish: UsageWish) -> None:
    """Really every one for a client that asked for nothing, as most do; else, and in a long one, some."""
    data = _STREAMS[name]
    whole = _outlook(name, wish, data)
    step = (1 if wish is UsageWish.NONE else 7) * (1 if len(data) < _LONG_BYTES else 5)
    cuts = range(1, len(data), step)
    assert not {cut for cut in cuts if _outlook(name, wish, data[:cut], data[cut:]) != whole}


def _pieces(data: bytes, *, seed: int) -> Iterator[list[bytes]]:
    """Reads of one byte, of three, of a few hundred; and cuts in three at random places."""
    for size in (1, 3, 257):
        yield [data[at : at + size] for at in range(0, len(data), size)]
    draw = random.Random(seed)
    for _ in range(60):
        first, second = sorted(draw.sample(range(1, len(data)), 2))
        yield [data[:first], data[first:second], data[second:]]


@pytest.mark.parametrize("name", _STREAMS)
def test_small_reads_and_cuts_in_three_are_unseen(name: str) -> None:
    data = _STREAMS[name]
    for wish in UsageWish:
        whole = _outlook(name, wish, data)
        for pieces in _pieces(data, seed=len(data)):
            assert _outlook(name, wish, *pieces) == whole


async def _relayed(name: str, wish: UsageWish, *pieces: bytes) -> tuple[bytes, Settled]:
    """What the client of a whole relay got, and the record, but for what tells one request from another."""
    backend = replace(BACKEND, engine=_engine(name), served_model="smollm2-135m-instruct")
    on = stage(backend=backend, n=_choices(name), **_OPTIONS[wish])
    on.relay.head(200, SSE, backend=backend)
    for piece in pieces:
        on.relay.piece(piece)
        if on.relay.ended:
            break
    on.relay.end()
    await on.desk.close()
    on.journal.commit()
    await on.pump()
    (settled,) = on.journal.settled
    request_id = str(settled.request_id).encode()
    same = replaced(settled)
    return on.body.replace(request_id, b"req"), same


def replaced(settled: Settled) -> Settled:
    """The record without id and attempts."""
    fields = {name: getattr(settled, name) for name in settled.__struct_fields__}
    return Settled(**{**fields, "request_id": "req", "attempts": ()})


@pytest.mark.parametrize("name", _STREAMS)
async def test_a_whole_relay_tells_and_records_the_same_however_it_was_read(name: str) -> None:
    data = _STREAMS[name]
    for wish in UsageWish:
        whole = await _relayed(name, wish, data)
        assert whole[1].outcome in (Outcome.COMPLETED, Outcome.ENGINE_FAILED)
        for pieces in list(_pieces(data, seed=1))[:12]:
            assert await _relayed(name, wish, *pieces) == whole


def test_streams_that_engines_broke_off_are_among_them() -> None:
    outlooks = {name: _outlook(name, UsageWish.NONE, data) for name, data in _STREAMS.items()}
    failed = {name for name, outlook in outlooks.items() if outlook.state[2]}
    whole = {name for name, outlook in outlooks.items() if outlook.state[:2] == (True, True)}
    assert any("-faults/" in name for name in failed)
    assert any("-overload/" in name for name in whole)
    assert any("-pd-nixl/" in name for name in whole)
    assert any(name.startswith("xllamacpp") for name in whole)
    assert len(outlooks) >= 20
