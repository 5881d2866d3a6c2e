"""The page of field cases is true: every test that it names exists, every row has a test or says why not."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

ROOT = Path(__file__).parents[2]
_PAGE = (ROOT / "docs" / "field-cases.md").read_text(encoding="utf-8")
_NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
_NO_TEST = "No test: "
_FAMILIES = 9
_FEWEST_ROWS = 65


def _rows() -> list[list[str]]:
    """The cells of every row below a table's head."""
    lines = [line for line in _PAGE.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0] != "seen at" and set(row[0]) != {"-"}]


@cache
def _tests_in(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(function.name for function in functions if function.name.startswith("test_"))


def test_the_page_has_all_families_and_their_rows() -> None:
    assert _PAGE.count("\n## ") == _FAMILIES
    assert len(_rows()) >= _FEWEST_ROWS
    assert all(len(row) == 4 and all(row) for row in _rows())


@pytest.mark.parametrize("row", _rows(), ids=lambda row: re.sub(r"\W+", "-", row[0])[:40])
def test_a_row_names_tests_that_exist_or_says_why_there_is_none(row: list[str]) -> None:
    seen_at, _, _, proof = row
    named = _NAMED.findall(proof)
    assert bool(named) is not proof.startswith(_NO_TEST), seen_at
    assert not [f"{path}::{name}" for path, name in named if name not in _tests_in(path)], seen_at


def test_every_reported_figure_in_the_data_stands_on_the_page() -> None:
    data = (ROOT / "tests" / "data" / "metering_cases.json").read_bytes()
    cases: list[dict[str, Any]] = msgspec.json.decode(data)
    sources = [source for case in cases for source in re.findall(r"[\w-]+/[\w-]+#\d+", case["source"])]
    assert sources
    missing = []
    for source in sources:
        repository, _, number = source.partition("#")
        rows = [row[0] for row in _rows() if repository in row[0]]
        missing += [] if any(f"#{number}" in row for row in rows) else [source]
    assert not missing
