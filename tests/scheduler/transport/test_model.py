from __future__ import annotations

import pytest

from scheduler.transport.model import Target, parse_target


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://127.0.0.1:8000", Target("127.0.0.1", 8000)),
        ("http://engine.internal/", Target("engine.internal", 80)),
        ("https://engine.internal", Target("engine.internal", 443, tls=True)),
        ("http://10.0.0.7:8000/base/", Target("10.0.0.7", 8000, base_path="/base")),
        ("http://[::1]:8000/a/b", Target("::1", 8000, base_path="/a/b")),
    ],
)
def test_a_base_url_becomes_a_target(url: str, target: Target) -> None:
    assert parse_target(url) == target


def test_trust_is_said_beside_the_url() -> None:
    target = parse_target("https://10.0.0.7", server_name="engine", ca_file="ca.pem")
    assert (target.server_name, target.ca_file) == ("engine", "ca.pem")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8000",
        "ftp://engine",
        "http://",
        "http://:8000",
        "http://engine:",
        "http://engine:0",
        "http://engine:65536",
        "http://engine:port",
        "http://user:secret@engine",
        "http://engine/?a=1",
        "http://engine/#a",
        "http://engine /",
        "http://eng\nine/",
        "http://engine/\r\nx: y",
        "http://motör/",
        "http://eng,ine/",
        "http://.engine/",
    ],
)
def test_an_unusual_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_target(url)


@pytest.mark.parametrize("name", [".", "en gine", "motör", "a\0b"])
def test_a_certificates_name_is_a_name(name: str) -> None:
    with pytest.raises(ValueError, match="host"):
        parse_target("https://10.0.0.7", server_name=name)
