"""Whether an engine answers at an address, and what to put right if not."""

from __future__ import annotations

import pytest

from app.catalog.connection_test import probe_engine
from tests.app.catalog.small_engine import serve_models


@pytest.mark.parametrize(
    ("path", "reachable", "problem"),
    [
        ("", True, None),
        ("/nothing", True, "/health answers 404"),
        ("/odd", True, "/v1/models is no model list"),
        ("/endless", True, "/v1/models is no model list"),
        ("/packed", True, "/v1/models is no model list"),
    ],
)
async def test_a_test_says_what_to_put_right(path: str, reachable: bool, problem: str | None) -> None:
    async with serve_models("served") as url:
        report = await probe_engine(url + path, served_model="served")
    assert (report.reachable, report.problem) == (reachable, problem)


async def test_what_is_no_engine_is_not_reached() -> None:
    report = await probe_engine("http://127.0.0.1:1", served_model="served")
    assert not report.reachable
    assert report.problem


async def test_an_engine_that_never_ends_its_answer_is_not_waited_for() -> None:
    async with serve_models("served") as url:
        report = await probe_engine(f"{url}/silent", served_model="served", within_s=0.3)
    assert report.problem == "it does not answer to its end within 0.3 s"
