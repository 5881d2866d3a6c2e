from __future__ import annotations

import time

from app.core import ids


def test_ids_made_one_after_the_other_sort_in_that_order() -> None:
    made = [ids.request_id() for _ in range(10_000)]
    assert made == sorted(set(made))


def test_an_id_tells_when_it_was_made() -> None:
    before = time.time_ns() // 1_000_000
    made = ids.created_ms(ids.tenant_id())
    assert before <= made <= time.time_ns() // 1_000_000


def test_only_the_form_of_its_own_kind_is_an_id() -> None:
    good = ids.request_id()
    assert ids.is_id(good, "req_")
    for bad in (good[:-1], good + "0", good.upper(), "ten_" + good[4:], "req_" + "g" * 32, ""):
        assert not ids.is_id(bad, "req_")


def test_within_a_block_ids_come_from_a_given_source() -> None:
    with ids.drawn_from(lambda: "0" * 32):
        assert ids.request_id() == "req_" + "0" * 32
    assert ids.request_id() != ids.request_id()
