"""The page about reconciliation names every pair and every kind of share, and no other."""

from __future__ import annotations

from pathlib import Path

from billing.reconcile.explain import WORDS
from billing.reconcile.model import Pair

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reconcile.md"


def test_every_pair_and_kind_is_documented() -> None:
    rows = [
        line.split("|")[1].strip() for line in PAGE.read_text(encoding="utf-8").splitlines() if "|" in line
    ]
    named = {cell.strip("`") for cell in rows if cell.startswith("`")}
    assert named == {pair.value for pair in Pair} | WORDS.keys()
