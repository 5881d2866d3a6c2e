from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from app.gateway.surgery import find_member, object_end, without

_KEY = b'"usage"'
_texts = st.text(max_size=30) | st.sampled_from(
    ['"usage":{}', '\\"usage":{"a":1}', '"usage"', "}{", "\\", "usage"]
)
_scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | _texts
_values = st.recursive(
    _scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(_texts.filter(lambda k: k != "usage"), inner, max_size=3)
    ),
    max_leaves=8,
)
_objects = st.dictionaries(_texts.filter(lambda key: "usage" not in key), _values, max_size=4)
_usages = st.dictionaries(st.text("abc_", min_size=1, max_size=5), _values, max_size=3)


def _encoded(members: dict[str, Any], *, spaced: bool) -> bytes:
    data = msgspec.json.encode(members)
    return msgspec.json.format(data, indent=2) if spaced else data


@given(_objects, _usages, _objects, st.booleans())
def test_the_member_is_found_wherever_it_stands(
    before: dict[str, Any], usage: dict[str, Any], after: dict[str, Any], spaced: bool
) -> None:
    data = _encoded(
        {**before, "usage": usage, **{k: v for k, v in after.items() if k not in before}}, spaced=spaced
    )
    member = find_member(data, _KEY)
    assert member is not None
    assert msgspec.json.decode(data[member.value : member.end]) == usage


@given(_objects, _usages, _objects, st.booleans())
def test_cutting_it_out_leaves_all_else_and_valid_json(
    before: dict[str, Any], usage: dict[str, Any], after: dict[str, Any], spaced: bool
) -> None:
    rest = {**before, **{k: v for k, v in after.items() if k not in before}}
    whole = {**before, "usage": usage, **{k: v for k, v in after.items() if k not in before}}
    data = _encoded(whole, spaced=spaced)
    member = find_member(data, _KEY)
    assert member is not None
    assert msgspec.json.decode(without(data, member)) == rest


@given(_objects)
def test_a_text_that_looks_like_the_member_is_not_mistaken_for_it(members: dict[str, Any]) -> None:
    assert find_member(msgspec.json.encode(members), _KEY) is None


@given(_objects, st.binary(max_size=5))
def test_an_objects_end_is_where_it_ends(members: dict[str, Any], rest: bytes) -> None:
    data = msgspec.json.encode(members)
    assert object_end(data + rest, 0) == len(data)


def test_an_object_without_its_end_has_none() -> None:
    assert object_end(b'{"a":{"b":1}', 0) == 0
    assert find_member(b'{"usage":{"a":1', _KEY) is None


def test_null_is_a_member_too() -> None:
    data = b'{"a":1,"usage":null}'
    member = find_member(data, _KEY)
    assert member is not None
    assert without(data, member) == b'{"a":1}'
