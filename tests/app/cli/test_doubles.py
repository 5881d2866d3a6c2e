"""What is there twice is found, however much there is."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from app.cli.doubles import Doubles, key_of


@given(st.lists(st.integers(0, 50).map(str), max_size=60), st.integers(1, 9))
def test_whatever_fits_into_memory_the_same_ids_are_found(ids: list[str], chunk: int) -> None:
    with Doubles(chunk=chunk) as doubles:
        for line_id in ids:
            doubles.add(line_id)
        assert doubles.found() == {key_of(line_id) for line_id, times in Counter(ids).items() if times > 1}
