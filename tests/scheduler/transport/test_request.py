from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.transport.model import EngineRequest, Target, parse_target
from scheduler.transport.request import encode_head

TARGET = parse_target("http://engine:8000/base")


def test_a_head_names_host_length_and_no_compression() -> None:
    request = EngineRequest("POST", "/v1/chat/completions", ((b"X-Request-Id", b"req_1"),), b"{}")
    assert encode_head(request, TARGET) == (
        b"POST /base/v1/chat/completions HTTP/1.1\r\n"
        b"host: engine:8000\r\naccept-encoding: identity\r\nX-Request-Id: req_1\r\ncontent-length: 2\r\n\r\n"
    )


@pytest.mark.parametrize(("method", "has_length"), [("GET", False), ("HEAD", False), ("POST", True)])
def test_an_empty_body_has_a_length_where_a_body_has_a_meaning(method: str, *, has_length: bool) -> None:
    head = encode_head(EngineRequest(method, "/health", (), b""), TARGET)
    assert (b"content-length: 0" in head) is has_length


@pytest.mark.parametrize(
    ("target", "host"),
    [
        (Target("engine", 80), b"engine"),
        (Target("engine", 443, tls=True), b"engine"),
        (Target("engine", 443), b"engine:443"),
        (Target("::1", 8000), b"[::1]:8000"),
        (Target("fe80::1%eth0", 80), b"[fe80::1]"),
    ],
)
def test_the_host_header_follows_the_target(target: Target, host: bytes) -> None:
    assert b"\r\nhost: " + host + b"\r\n" in encode_head(EngineRequest("GET", "/", (), b""), target)


@pytest.mark.parametrize(
    "request_",
    [
        EngineRequest("POST", "/", ((b"a", b"b\r\nevil: 1"),), b""),
        EngineRequest("POST", "/", ((b"a", b"b\n"),), b""),
        EngineRequest("POST", "/", ((b"a", b"b\r"),), b""),
        EngineRequest("POST", "/", ((b"a", b"b\0"),), b""),
        EngineRequest("POST", "/", ((b"a\r\nevil", b"b"),), b""),
        EngineRequest("POST", "/", ((b"a b", b"c"),), b""),
        EngineRequest("POST", "/", ((b"", b"c"),), b""),
        EngineRequest("POST", "/", ((b"Content-Length", b"1"),), b""),
        EngineRequest("POST", "/", ((b"Transfer-Encoding", b"chunked"),), b""),
        EngineRequest("POST", "/", ((b"host", b"other"),), b""),
        EngineRequest("POST", "/", ((b"Connection", b"close"),), b""),
        EngineRequest("POST", "/a b", (), b""),
        EngineRequest("POST", "/\r\nevil: 1", (), b""),
        EngineRequest("POST", "/ö", (), b""),
        EngineRequest("POST", "v1", (), b""),
        EngineRequest("POST", "http://other/", (), b""),
        EngineRequest("post", "/", (), b""),
        EngineRequest("POST /", "/", (), b""),
        EngineRequest("", "/", (), b""),
    ],
)
def test_what_could_change_the_message_is_refused(request_: EngineRequest) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        encode_head(request_, TARGET)


@given(st.lists(st.tuples(st.binary(max_size=8), st.binary(max_size=8)), max_size=4), st.text(max_size=8))
def test_a_written_head_has_exactly_the_lines_that_were_asked_for(
    headers: list[tuple[bytes, bytes]], path: str
) -> None:
    try:
        head = encode_head(EngineRequest("POST", "/" + path, tuple(headers), b""), TARGET)
    except ValueError:
        return
    lines = head.split(b"\r\n")
    assert lines[3:-3] == [name + b": " + value for name, value in headers]
    assert lines[0].split(b" ") == [b"POST", b"/base/" + path.encode(), b"HTTP/1.1"]
    assert head.count(b"\r") == head.count(b"\n") == len(lines) - 1
