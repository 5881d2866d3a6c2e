from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from app.core import log


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    log.configure("gateway", stream=stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_line_is_one_json_object_with_its_facts(lines: io.StringIO) -> None:
    logging.getLogger("gateway.settle").info("request_settled", extra={"request_id": "req_1", "tokens": 3})
    line = json.loads(lines.getvalue())
    assert (line["event"], line["process"], line["request_id"], line["tokens"]) == (
        "request_settled",
        "gateway",
        "req_1",
        3,
    )
    assert line["time"].endswith("+00:00")


def test_a_line_with_an_exception_stays_one_line(lines: io.StringIO) -> None:
    try:
        raise ValueError("a\nb")
    except ValueError:
        logging.getLogger("x").exception("failed")
    assert lines.getvalue().count("\n") == 1
    assert "ValueError" in json.loads(lines.getvalue())["exception"]


@pytest.mark.parametrize(
    "secret",
    ["sk-sy-" + "x" * 43, "sya_" + "y" * 43, "postgresql://steelyard_app:hunter2@/steelyard?host=/run"],
)
def test_no_secret_reaches_a_line_in_any_place(lines: io.StringIO, secret: str) -> None:
    try:
        raise RuntimeError(f"could not use {secret}")
    except RuntimeError:
        logging.getLogger("x").exception(
            "failed with %s", secret, extra={"url": secret, "nested": {"a": [secret]}}
        )
    assert secret not in lines.getvalue()
    assert "hunter2" not in lines.getvalue()
    assert "[secret]" in lines.getvalue()
