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


def _show_section(value: Any, *, indent: int = 2) -> None:
    if not isinstance(value, Mapping):
        _show_list(value, indent=indent)
        return
    flat = {_words(name): cell(inner) for name, inner in value.items() if not _is_section(inner)}
    width = max(map(len, flat), default=0)
    for name, text in flat.items():
        print(f"{'':<{indent}}{name:<{width}}  {text}")
    for name, inner in value.items():
        if _is_section(inner):
            print(f"{'':<{indent}}{_words(name)}")
            _show_section(inner, indent=indent + 2)


def _show_list(rows: Sequence[Mapping[str, Any]], *, indent: int) -> None:
    if all({"meter", "tokens", "price", "amount"} <= row.keys() for row in rows):
        for row in rows:
            print(f"{'':<{indent}}{arithmetic(row)}")
        return
    fields = list(dict.fromkeys(field for row in rows for field in row))
    cells = [[cell(row.get(field)) for field in fields] for row in rows]
    print_table(cells, {field: _words(field) for field in fields}, indent=indent)


def _words(name: str) -> str:
    return name.replace("_", " ")
