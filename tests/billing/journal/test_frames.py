"""Frames are read back as they were written, whatever the end of the file looks like."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.journal.frames import (
    MAX_PAYLOAD_BYTES,
    Frame,
    Tail,
    complete_prefix,
    find_next,
    pack,
    unpack,
)


def record(fields: int) -> bytes:
    """A payload that begins as records do: a map whose first key is its kind."""
    return msgspec.msgpack.encode({"type": "settled", **{f"field{n}": n for n in range(fields - 1)}})


PAYLOADS = st.lists(st.binary(min_size=1, max_size=40), max_size=6)


@given(PAYLOADS, st.integers(0, 2**40))
def test_frames_come_back_with_their_offsets(payloads: list[bytes], offset: int) -> None:
    data = b"".join(map(pack, payloads))
    frames, tail = unpack(data, offset=offset)
    assert [frame.payload for frame in frames] == payloads
    assert tail is Tail.CLEAN
    assert [frame.end - frame.start for frame in frames] == [len(pack(p)) for p in payloads]
    assert [frame.start for frame in frames] == [offset, *(frame.end for frame in frames)][: len(frames)]


@given(PAYLOADS)
def test_a_file_cut_at_any_byte_gives_its_whole_frames_and_is_never_called_corrupt(
    payloads: list[bytes],
) -> None:
    pieces = [pack(payload) for payload in payloads]
    data = b"".join(pieces)
    for cut in range(len(data) + 1):
        frames, tail = unpack(data[:cut], offset=0)
        whole = complete_prefix(pieces, cut)
        assert [frame.payload for frame in frames] == payloads[:whole]
        assert tail is (Tail.CLEAN if cut == sum(map(len, pieces[:whole])) else Tail.TORN)
        assert find_next(data[:cut], sum(map(len, pieces[:whole])) + 1) is None


@given(PAYLOADS, st.binary(min_size=2, max_size=40), st.data())
def test_a_flipped_bit_is_never_read_as_a_record(
    payloads: list[bytes], victim: bytes, data: st.DataObject
) -> None:
    before = b"".join(map(pack, payloads))
    frame = bytearray(pack(victim))
    bit = data.draw(st.integers(0, 8 * len(frame) - 1))
    frame[bit // 8] ^= 1 << (bit % 8)
    frames, tail = unpack(before + bytes(frame), offset=0)
    assert [frame.payload for frame in frames] == payloads
    assert tail is not Tail.CLEAN


def test_zeros_after_a_power_cut_are_a_torn_end() -> None:
    whole = pack(b"settled")
    frames, tail = unpack(whole + bytes(4096), offset=0)
    assert [frame.payload for frame in frames] == [b"settled"]
    assert tail is Tail.TORN
    assert find_next(bytes(4096), 1) is None


@pytest.mark.parametrize("offset", [0, 4096, 1234])
def test_a_power_cut_at_any_page_that_keeps_the_length_leaves_whole_records_and_a_torn_end(
    offset: int,
) -> None:
    packed = [pack(b"\x81\xa4type" + b"x" * size) for size in (1, 300, 9_000, 70_000)]
    data = b"".join(packed)
    for cut in range(-offset % 4096, len(data), 4096):
        found, tail = unpack(data[:cut] + b"\0" * (len(data) - cut), offset=offset)
        assert len(found) == complete_prefix(packed, cut), cut
        assert tail is Tail.TORN, cut


def test_a_rotten_record_that_ends_in_a_zero_is_corrupt_not_torn() -> None:
    rotten = bytearray(pack(b"\x81\xa4type" + b"x" * 300 + b"\0"))
    rotten[40] ^= 1
    assert unpack(bytes(rotten), offset=0) == ([], Tail.CORRUPT)


def test_zeros_between_records_are_corrupt() -> None:
    frames, tail = unpack(pack(b"one") + bytes(16) + pack(b"two"), offset=0)
    assert [frame.payload for frame in frames] == [b"one"]
    assert tail is Tail.CORRUPT


def test_a_broken_length_that_hides_records_is_no_torn_end() -> None:
    first = pack(record(1))
    hidden = bytearray(first + pack(record(2)))
    hidden[1] = 0x30  # the first length now reaches beyond the file
    assert unpack(bytes(hidden), offset=0) == ([], Tail.TORN)
    assert find_next(bytes(hidden), 1) == len(first)


@pytest.mark.parametrize("fields", [1, 15, 16, 300])
@given(st.binary(max_size=60))
def test_the_next_record_behind_foreign_bytes_is_found_however_many_fields_it_has(
    fields: int, foreign: bytes
) -> None:
    data = foreign + pack(record(fields))
    assert find_next(data, 0) == len(foreign)
    assert find_next(data[:-1], 0) is None
    assert find_next(data, len(foreign) + 1) is None


def test_a_length_that_no_record_has_is_corrupt() -> None:
    data = (MAX_PAYLOAD_BYTES + 1).to_bytes(4, "little") + bytes(8)
    assert unpack(data, offset=7) == ([], Tail.CORRUPT)


@pytest.mark.parametrize("size", [0, MAX_PAYLOAD_BYTES + 1])
def test_what_could_not_be_read_back_is_not_written(size: int) -> None:
    with pytest.raises(ValueError, match="journal record"):
        pack(bytes(size))


def test_the_longest_record_is_read_back() -> None:
    payload = bytes(MAX_PAYLOAD_BYTES)
    assert unpack(pack(payload), offset=3)[0] == [Frame(3, 3 + 8 + MAX_PAYLOAD_BYTES, payload)]
