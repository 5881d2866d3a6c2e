"""Each kind of event leaves an engine's counter a range; only what lies beyond all of them is unexplained."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.metering.model import UsageSource
from billing.reconcile.explain import CUT_TAIL, LOST_TAIL, WORDS, Cell, Place, billed_tokens, shares, verdict
from billing.reconcile.exposition import ENGINES, Names
from billing.reconcile.model import DayState, EngineMeter

VLLM, LLAMA, SGLANG = ENGINES["vllm"], ENGINES["llama-server"], ENGINES["sglang"]
PROMPT, GENERATED = EngineMeter.PROMPT, EngineMeter.GENERATED
CELL = Cell(
    place=Place.INSIDE,
    source=UsageSource.ENGINE,
    whole=True,
    is_billed=True,
    choices=1,
    requests=2,
    prompt=1000,
    output=300,
    bound_prompt=0,
    bound_output=0,
    billed_prompt=1000,
    billed_output=300,
    lost=0,
)
UNKNOWN = replace(
    CELL, source=UsageSource.UNKNOWN, prompt=0, output=0, bound_prompt=1500, bound_output=800, is_billed=False
)
CUT = replace(CELL, source=UsageSource.ENGINE_PARTIAL, whole=False)


def span(cell: Cell, meter: EngineMeter, names: Names = VLLM) -> tuple[str, int, int, int]:
    (share,) = shares([cell], meter=meter, names=names)
    return share.kind, share.recorded, share.low, share.high


def test_what_the_engine_reported_is_exact() -> None:
    assert span(CELL, PROMPT) == ("counted", 1000, 1000, 1000)
    assert span(CELL, GENERATED) == ("counted", 300, 300, 300)


def test_of_several_answers_vllm_counts_the_prompt_once_for_each() -> None:
    several = replace(CELL, choices=3)
    assert span(several, PROMPT) == ("several_choices", 3000, 3000, 3000)
    assert span(several, GENERATED) == ("several_choices", 300, 300, 300)
    assert billed_tokens([several], PROMPT) == 1000


def test_of_several_answers_nobody_knows_how_often_another_engine_counts_the_prompt() -> None:
    assert span(replace(CELL, choices=2), PROMPT, LLAMA) == ("several_choices", 1000, 1000, 3000)
    assert span(replace(CELL, choices=2), PROMPT, SGLANG) == ("several_choices", 1000, 1000, 3000)


def test_a_cut_answer_leaves_room_for_what_the_engine_made_until_it_learned_of_it() -> None:
    assert span(CUT, PROMPT) == ("cut", 1000, 1000, 1000)
    assert span(CUT, GENERATED) == ("cut", 300, 300, 300 + 2 * CUT_TAIL)
    assert span(replace(CUT, choices=2), GENERATED)[3] == 300 + 4 * CUT_TAIL


def test_of_a_lost_answer_nobody_read_what_came_after_its_last_progress() -> None:
    assert span(replace(CUT, lost=2), GENERATED) == ("cut", 300, 300, 300 + 2 * (CUT_TAIL + LOST_TAIL))
    assert span(replace(CUT, lost=1), GENERATED)[3] == 300 + 2 * CUT_TAIL + LOST_TAIL
    assert span(replace(CUT, lost=2, choices=3), GENERATED)[3] == 300 + 6 * (CUT_TAIL + LOST_TAIL)


def test_llama_server_may_not_count_a_cut_answer_at_all() -> None:
    assert span(CUT, GENERATED, LLAMA) == ("cut", 300, 0, 300 + 2 * CUT_TAIL)


def test_unknown_usage_is_anything_up_to_its_bound_and_never_zero_for_sure() -> None:
    assert span(UNKNOWN, PROMPT) == ("unknown_usage", 0, 0, 1500)
    assert span(UNKNOWN, GENERATED) == ("unknown_usage", 0, 0, 800)
    assert span(replace(UNKNOWN, choices=2), PROMPT)[3] == 3000


def test_a_tokenizers_count_is_near_the_engines() -> None:
    counted = replace(CELL, source=UsageSource.TOKENIZER)
    assert span(counted, GENERATED) == ("by_tokenizer", 300, 300 - 37 - 128, 300 + 37 + 128)
    kind, _, low, high = span(replace(counted, whole=False), PROMPT)
    assert (kind, low, high) == ("by_tokenizer", 0, 1000 + 125 + 128)


@pytest.mark.parametrize(("place", "kind"), [(Place.EDGE, "window_edge"), (Place.HOLE, "engine_restarted")])
def test_what_ran_at_an_edge_or_through_a_restart_is_counted_in_part_or_not(place: Place, kind: str) -> None:
    assert span(replace(CELL, place=place), PROMPT) == (kind, 1000, 0, 1000)
    assert span(replace(CUT, place=place), GENERATED) == (kind, 300, 0, 300 + 2 * CUT_TAIL)


@pytest.mark.parametrize(
    ("place", "kind"), [(Place.OTHER_ATTEMPT, "other_attempt"), (Place.NOWHERE, "backend_unknown")]
)
def test_what_may_have_touched_a_backend_is_not_recorded_there(place: Place, kind: str) -> None:
    elsewhere = replace(CELL, place=place)
    assert span(elsewhere, PROMPT) == (kind, 0, 0, 1000)
    assert billed_tokens([elsewhere], PROMPT) == 0


def test_what_our_side_broke_is_recorded_and_not_billed() -> None:
    free = replace(CELL, is_billed=False, billed_prompt=0, billed_output=0)
    assert span(free, GENERATED) == ("not_billed", 300, 300, 300)
    assert billed_tokens([free, CELL], GENERATED) == 300


def test_only_what_lies_beyond_all_ranges_is_unexplained() -> None:
    explained = shares([CELL, CUT], meter=GENERATED, names=VLLM)
    most = 600 + 2 * CUT_TAIL
    assert verdict(None, explained) == (DayState.UNKNOWN, None)
    assert verdict(600, explained) == (DayState.RECONCILED, 0)
    assert verdict(most, explained) == (DayState.RECONCILED, 0)
    assert verdict(most + 7, explained) == (DayState.UNATTRIBUTED, 7)
    assert verdict(593, explained) == (DayState.MISSING_AT_ENGINE, -7)
    assert verdict(5, []) == (DayState.UNATTRIBUTED, 5)


def test_every_kind_has_words() -> None:
    cells = [replace(CELL, place=place, source=source) for place in Place for source in UsageSource]
    assert {share.kind for share in shares(cells, meter=PROMPT, names=VLLM)} <= WORDS.keys()


cells = st.builds(
    Cell,
    place=st.sampled_from(Place),
    source=st.sampled_from(UsageSource),
    whole=st.booleans(),
    is_billed=st.booleans(),
    choices=st.integers(1, 8),
    requests=st.integers(1, 1000),
    **{
        name: st.integers(0, 10**9)
        for name in (
            "prompt",
            "output",
            "bound_prompt",
            "bound_output",
            "billed_prompt",
            "billed_output",
            "lost",
        )
    },
)


@given(st.lists(cells, max_size=20), st.sampled_from(EngineMeter), st.sampled_from([VLLM, LLAMA, SGLANG]))
def test_the_shares_are_the_whole_whatever_the_order(
    some: list[Cell], meter: EngineMeter, names: Names
) -> None:
    explained = shares(some, meter=meter, names=names)
    assert explained == shares(reversed(some), meter=meter, names=names)
    apart = [share for cell in some for share in shares([cell], meter=meter, names=names)]
    for side in ("requests", "recorded", "low", "high"):
        assert sum(getattr(s, side) for s in explained) == sum(getattr(s, side) for s in apart)
    assert all(0 <= share.low <= share.high for share in explained)
