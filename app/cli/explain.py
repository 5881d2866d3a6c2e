"""A request explained for people: section by section, in the order in which things happened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.cli.present import cell, print_table, show_record


def show_explanation(explanation: Mapping[str, Any]) -> None:
    """Print plain facts first, then a section for each part; unknown parts are shown, not dropped."""
    facts = {name: value for name, value in explanation.items() if not _is_section(value)}
    show_record({_words(name): value for name, value in facts.items()}, as_json=False)
    for name, value in explanation.items():
        if _is_section(value):
            print(f"\n{_words(name)}")
            _show_section(value)


def arithmetic(line: Mapping[str, Any]) -> str:
    """One class of a charge as a sum that anyone can check: `1234 tokens × 0.54 / 1 M = 0.00066636`."""
    return f"{line['meter']}: {line['tokens']} tokens × {line['price']} / 1 M = {line['amount']}"


def _is_section(value: Any) -> bool:
    return isinstance(value, Mapping) or (
        isinstance(value, Sequence) and not isinstance(value, str) and _rows(value)
    )


def _rows(value: Sequence[Any]) -> bool:
    return bool(value) and all(isinstance(row, Mapping) for row in value)


def _show_section(value: Any) -> None:
    if not isinstance(value, Mapping):
        _show_list(value)
        return
    flat = {name: inner for name, inner in value.items() if not _is_section(inner)}
    for name, inner in flat.items():
        print(f"  {_words(name)}  {cell(inner)}")
    for name, inner in value.items():
        if name not in flat:
            print(f"  {_words(name)}")
            _show_section(inner)


def _show_list(rows: Sequence[Mapping[str, Any]]) -> None:
    if all({"meter", "tokens", "price", "amount"} <= row.keys() for row in rows):
        for row in rows:
            print(f"  {arithmetic(row)}")
        return
    fields = list(dict.fromkeys(field for row in rows for field in row))
    print_table([[cell(row.get(field)) for field in fields] for row in rows], {f: _words(f) for f in fields})


def _words(name: str) -> str:
    return name.replace("_", " ")
