"""Pages of real engines are read by their own names, and what a page doesn't say is unknown."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.reconcile.exposition import ENGINES, read_page
from billing.reconcile.model import Counters
from scheduler.simulator.stats import Stats

PAGES = Path(__file__).parents[2] / "data" / "engine" / "metrics"
VLLM = ENGINES["vllm"]


def test_a_page_of_vllm_is_read_by_its_names() -> None:
    page = (PAGES / "vllm.txt").read_text()
    read = read_page(page, VLLM, served_model="smollm2-135m-instruct")
    assert read == Counters("1.7960638622e+09", prompt=6288, cached=2048, generated=1994, finished=58)


def test_a_page_of_llama_server_leaves_the_cached_part_of_its_prompts_out() -> None:
    page = (PAGES / "llama-server.txt").read_text()
    read = read_page(page, ENGINES["llama-server"], served_model="any", process="3092033976")
    assert read == Counters("3092033976", prompt=1214 + 4777, cached=4777, generated=389, finished=None)
    older = "\n".join(line for line in page.splitlines() if "cached" not in line)
    assert read_page(older, ENGINES["llama-server"], served_model="any").prompt is None


def test_the_stand_in_speaks_vllms_names_and_counts_a_prompt_once_per_answer() -> None:
    stats = Stats()
    served = stats.admitted("req_1", 10, times=3)
    stats.generated(served, 24)
    stats.ended(served, "length")
    page = stats.as_metrics("small", 4).decode()
    read = read_page(page, ENGINES["simulator"], served_model="small")
    assert read == Counters(str(stats.started_s), prompt=30, cached=None, generated=24, finished=1)


def test_sglang_is_read_by_its_names() -> None:
    page = (
        'sglang:prompt_tokens_total{model_name="m",tp_rank="0"} 8.128902e+06\n'
        'sglang:generation_tokens_total{model_name="m",tp_rank="0"} 7.557572e+06\n'
        'sglang:num_requests_total{model_name="m"} 12.0\n'
    )
    read = read_page(page, ENGINES["sglang"], served_model="m")
    assert read == Counters(None, prompt=8_128_902, cached=None, generated=7_557_572, finished=12)


def test_ranks_of_one_engine_are_summed_and_other_models_are_left_out() -> None:
    page = (
        'vllm:prompt_tokens_total{engine="0",model_name="a"} 5.0\n'
        'vllm:prompt_tokens_total{engine="1",model_name="a"} 7.0\n'
        'vllm:prompt_tokens_total{engine="0",model_name="b"} 100.0\n'
    )
    assert read_page(page, VLLM, served_model="a").prompt == 12
    assert read_page(page, VLLM, served_model="b").prompt == 100
    assert read_page(page, VLLM, served_model="c").prompt is None


def test_the_only_model_of_a_page_counts_under_another_name_too() -> None:
    page = 'vllm:prompt_tokens_total{engine="0",model_name="the/\\"first\\" name"} 5.0\n'
    assert read_page(page, VLLM, served_model="an alias").prompt == 5
    assert read_page(page, VLLM, served_model='the/"first" name').prompt == 5


@pytest.mark.parametrize(
    "value", ["NaN", "+Inf", "-1.0", "0.5", "1e300", "1e999999999", "many", "9007199254740992"]
)
def test_what_is_no_count_is_unknown(value: str) -> None:
    page = f"vllm:prompt_tokens_total 3.0\nvllm:generation_tokens_total {value}\n"
    assert read_page(page, VLLM, served_model="m") == Counters(None, prompt=3)


def test_one_rank_that_does_not_tell_makes_the_sum_unknown() -> None:
    page = 'vllm:prompt_tokens_total{engine="0"} NaN\nvllm:prompt_tokens_total{engine="1"} 7.0\n'
    assert read_page(page, VLLM, served_model="m").prompt is None


def test_a_sum_beyond_what_an_engine_can_count_is_unknown() -> None:
    page = 'vllm:prompt_tokens_total{engine="0"} 9007199254740991\nvllm:prompt_tokens_total{engine="1"} 7.0\n'
    assert read_page(page, VLLM, served_model="m").prompt is None


@pytest.mark.parametrize("name", ["4\x002", "4" * 65, "four two", "", "٤٢"])
def test_a_process_that_has_no_name_to_keep_is_unknown(name: str) -> None:
    assert read_page(f"process_start_time_seconds {name}\n", VLLM, served_model="m") == Counters()
    assert read_page("", VLLM, served_model="m", process=name) == Counters()


def test_an_empty_page_says_nothing_and_never_0() -> None:
    assert read_page("", VLLM, served_model="m") == Counters()


@given(st.text(max_size=400))
def test_no_page_breaks_the_reader(page: str) -> None:
    for names in ENGINES.values():
        assert isinstance(read_page(page, names, served_model="m"), Counters)
