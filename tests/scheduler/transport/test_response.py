"""The reader alone: no sockets, every way to cut a response into reads, and anything a peer might say."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.transport.model import Limits
from scheduler.transport.response import ResponseReader
from tests.scheduler.transport.peers import CHUNKED, OK

CAPTURES = Path(__file__).parents[2] / "data" / "engine"
ABORTED = CAPTURES / "vllm-0.32.0-cpu/chat_abort.response.http"
STREAM = CAPTURES / "vllm-0.32.0-cpu/chat_stream_usage.response.http"
WHOLE = [
    STREAM,
    CAPTURES / "vllm-0.32.0-cpu/completion.response.http",
    CAPTURES / "vllm-0.32.0-cpu/err_unknown_model.response.http",
    CAPTURES / "vllm-0.32.0-cpu/health.response.http",
    CAPTURES / "vllm-0.32.0-cpu-faults/killcore_nonstream.response.http",
    CAPTURES / "vllm-0.32.0-cpu-faults/killworker_stream.response.http",
    CAPTURES / "xllamacpp-2026.10.11549/completion.response.http",
    CAPTURES / "xllamacpp-2026.10.11549/completion_stream_usage.response.http",
    CAPTURES / "xllamacpp-2026.10.11549/err_route.response.http",
]
CANNED = [
    OK,
    CHUNKED + b"2\r\nhi\r\n5;ext=1\r\nthere\r\n0\r\nx-trailer: 1\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nlink: x\r\n\r\n" + OK,
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 304 Not Modified\r\ncontent-length: 12\r\n\r\n",
    b"HTTP/1.1 200\r\ncontent-length: 0\r\n\r\n",
]


def read(*parts: bytes, limits: Limits | None = None) -> tuple[ResponseReader, bytes]:
    reader = ResponseReader(limits or Limits())
    body = b""
    for part in parts:
        if reader.fault is None:
            reader.feed(part)
            body += reader.take()
    return reader, body


def outcome(*parts: bytes) -> tuple[object, ...]:
    reader, body = read(*parts)
    return reader.status, reader.headers, body, reader.complete, reader.reusable, reader.fault


@pytest.mark.parametrize("raw", [path.read_bytes() for path in WHOLE] + CANNED)
def test_every_two_way_split_reads_alike(raw: bytes) -> None:
    whole = outcome(raw)
    assert whole[5] is None
    for cut in range(1, len(raw)):
        assert outcome(raw[:cut], raw[cut:]) == whole


@pytest.mark.parametrize("path", WHOLE, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_an_engines_recorded_answer_is_complete(path: Path) -> None:
    reader, body = read(path.read_bytes())
    assert reader.complete
    assert reader.status == int(path.read_bytes().split(b" ")[1])
    assert body[:1] in (b"{", b"d", b"")
    assert body[-1:] in (b"}", b"\n", b"")


def test_a_recorded_stream_loses_only_its_transfer_coding() -> None:
    _, body = read(STREAM.read_bytes())
    events = body.split(b"\n\n")
    assert all(event.startswith(b"data: ") for event in events[:-1])
    assert events[-2:] == [b"data: [DONE]", b""]


@pytest.mark.parametrize("raw", [path.read_bytes() for path in WHOLE] + CANNED)
def test_a_shortened_response_is_never_complete(raw: bytes) -> None:
    assert outcome(raw)[3]
    for cut in range(len(raw)):
        reader, _ = read(raw[:cut])
        assert not reader.complete
        assert not reader.ends_with_connection()


def test_an_aborted_recorded_stream_is_not_complete() -> None:
    reader, body = read(ABORTED.read_bytes())
    assert body
    assert (reader.complete, reader.ends_with_connection(), reader.fault) == (False, False, None)


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 2\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 2\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2, 2\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\ncontent-length: +2\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\ncontent-length: -2\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\ncontent-length: 0x2\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\ncontent-length:\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\ncontent-length : 2\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\ncontent-length: 2\n\nhi",
        b"HTTP/1.1 200 OK\r\na: b\ncontent-length: 2\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\na: b\rcontent-length: 2\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\na: b\r\n c\r\ncontent-length: 2\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\na: b\0c\r\ncontent-length: 2\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\n: b\r\ncontent-length: 2\r\n\r\nhi",
        b"HTTP/2.0 200 OK\r\ncontent-length: 2\r\n\r\nhi",
        b"HTTP/1.1 099 X\r\ncontent-length: 2\r\n\r\nhi",
        b"HTTP/1.1 600 X\r\ncontent-length: 2\r\n\r\nhi",
        b"HTTP/1.1 20 X\r\ncontent-length: 2\r\n\r\nhi",
        b"RTSP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi",
        b"\r\n" + OK,
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nraw",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\nraw",
        b"HTTP/1.1 100 Continue\r\ncontent-length: 2\r\n\r\nhi" + OK,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 9 + OK,
        CHUNKED + b"2\nhi\n0\n\n",
        CHUNKED + b"-2\r\nhi\r\n0\r\n\r\n",
        CHUNKED + b"2 \r\nhi\r\n0\r\n\r\n",
        CHUNKED + b"zz\r\nhi\r\n0\r\n\r\n",
        CHUNKED + b"fffffffffffffffff\r\nhi",
        CHUNKED + b"2\r\nhiXX0\r\n\r\n",
    ],
)
def test_a_response_that_could_be_read_in_two_ways_is_a_fault(raw: bytes) -> None:
    reader, _ = read(raw)
    assert reader.fault
    assert not reader.complete
    assert not reader.ends_with_connection()


@pytest.mark.parametrize("junk", [b"\r\n", b"\n", b"\r", b" ", b"H", b"x", OK])
@pytest.mark.parametrize(
    "raw",
    [
        OK,
        CHUNKED + b"2\r\nhi\r\n0\r\n\r\n",
        b"HTTP/1.1 204 X\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx:\r\ncontent-length: 0\r\n\r\n",
    ],
)
def test_a_byte_beyond_the_end_forbids_reuse_but_not_the_answer(raw: bytes, junk: bytes) -> None:
    clean, excess = outcome(raw), outcome(raw + junk)
    assert clean[4] is True
    assert excess == (*clean[:4], False, None)


def test_a_connection_serves_one_response_after_another() -> None:
    reader = ResponseReader(Limits())
    for raw in CANNED[:2] * 3:
        reader.begin()
        reader.feed(raw)
        assert (reader.complete, reader.reusable, reader.take()[:2]) == (True, True, b"hi")


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi",
    ],
)
def test_a_connection_that_will_close_is_not_reusable(raw: bytes) -> None:
    reader, body = read(raw)
    assert (reader.complete, reader.reusable, body) == (True, False, b"hi")


def test_a_body_without_length_ends_with_the_connection() -> None:
    reader, body = read(b"HTTP/1.1 200 OK\r\n\r\n", b"data: 1\n\n")
    assert (reader.complete, reader.ends_with_connection(), body) == (False, True, b"data: 1\n\n")


def test_the_answer_to_a_head_request_ends_with_its_head() -> None:
    reader = ResponseReader(Limits())
    reader.begin(bodiless=True)
    reader.feed(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
    assert (reader.status, reader.complete, reader.reusable, reader.fault) == (200, True, False, None)


def test_header_names_are_lowered_and_values_trimmed() -> None:
    reader, _ = read(b"HTTP/1.1 200 OK\r\nX-Thing:  a b \t\r\nContent-Length: 0 \r\n\r\n")
    assert reader.headers == [(b"x-thing", b"a b"), (b"content-length", b"0")]


@pytest.mark.parametrize(
    "parts",
    [
        [b"HTTP/1.1 200 " + b"x" * 5000] * 3,
        [b"HTTP/1.1 200 OK\r\nx: ", *[b"y" * 5000] * 3],
        [b"HTTP/1.1 200 OK\r\n", *[b"y" * 5000] * 3],
        [b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 129 + b"content-length: 0\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\nx: " + b"y" * 9000 + b"\r\ncontent-length: 0\r\n\r\n"],
        [CHUNKED, b"2\r\nhi\r\n0\r\n", *[b"x: y\r\n" * 900] * 3],
        [CHUNKED, b"2\r\nhi\r\n0\r\nx: ", *[b"y" * 5000] * 3],
        [CHUNKED, b"2;", *[b"y" * 5000] * 3],
    ],
)
def test_what_grows_without_a_body_is_bounded(parts: list[bytes]) -> None:
    reader, _ = read(*parts, limits=Limits(head_bytes=8000, head_count=128))
    assert reader.fault
    assert not reader.complete


def test_a_byte_at_a_time_is_no_bomb() -> None:
    raw = CHUNKED + b"1\r\nx\r\n" * 400 + b"0\r\n\r\n"
    reader, body = read(*(raw[i : i + 1] for i in range(len(raw))), limits=Limits(head_bytes=300))
    assert (reader.complete, reader.fault, body) == (True, None, b"x" * 400)


LINES = [
    b"HTTP/1.1 200 OK\r\n",
    b"content-length: 3\r\n",
    b"transfer-encoding: chunked\r\n",
    b"connection: close\r\n",
]
BITS = [
    b"\r\n",
    b"\n",
    b"\r",
    b"\0",
    b": ",
    b"abc",
    b"3\r\nabc\r\n",
    b"0\r\n\r\n",
    b"HTTP/1.1 100 Go\r\n\r\n",
    OK,
]
FRAGMENTS = st.sampled_from([*LINES, *BITS])


@given(st.lists(FRAGMENTS | st.binary(max_size=6), max_size=12))
def test_no_bytes_whatever_raise_out_of_the_reader(parts: list[bytes]) -> None:
    reader, _ = read(*(part for part in parts if part))
    assert not (reader.complete and reader.fault)
    assert not (reader.complete and reader.ends_with_connection())
    assert reader.complete <= bool(reader.status)


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.data())
def test_any_chunking_and_any_reads_give_the_same_body(chunks: list[bytes], data: st.DataObject) -> None:
    raw = CHUNKED + b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    cuts = sorted(data.draw(st.sets(st.integers(1, len(raw) - 1), max_size=8)))
    reader, body = read(*(raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)))
    assert (reader.complete, reader.reusable, body) == (True, True, b"".join(chunks))
