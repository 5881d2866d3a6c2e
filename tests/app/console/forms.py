"""Forms as a browser without scripts sends them back."""

from __future__ import annotations

from html.parser import HTMLParser


class _Fields(HTMLParser):
    """The hidden fields of the last form of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if tag == "input" and named.get("type") == "hidden":
            self.values[named["name"] or ""] = named.get("value") or ""


def hidden_fields(page: str) -> dict[str, str]:
    """The hidden fields of a page's forms, by name."""
    parser = _Fields()
    parser.feed(page)
    return parser.values
