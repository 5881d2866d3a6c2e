"""The policy that programs and people read is the table that settles requests; the document says the same."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import takewhile
from pathlib import Path

import httpx

from app.control.measure import CHECKS, CLASSES, FREE, OUTCOMES, SOURCES
from billing.metering.model import Meter, Outcome, Usage, UsageSource
from billing.metering.policy import BILLED, billed
from tests.app.control.world import World

_DOCUMENT = Path(__file__).parents[3] / "docs" / "measure.md"
_USAGE = Usage(input=1, input_cached=2, input_cache_write=3, output=4)


async def _key(world: World, scopes: list[str]) -> httpx.AsyncClient:
    tenant = await world.tenant("Acme")
    project = await world.made(f"/tenants/{tenant['id']}/projects", {"name": "p"})
    facts = {"name": "k", "scopes": scopes}
    return world.client((await world.made(f"/projects/{project['id']}/keys", facts))["key"])


async def test_every_pair_of_outcome_and_source_is_told_as_it_is_billed(world: World) -> None:
    told = (await world.operator.get("/api/v1/metering-policy")).json()
    rows = {(row["outcome"], row["usage_source"]): row["meters"] for row in told["billed"]}
    assert rows.keys() == {(outcome, source) for outcome in Outcome for source in UsageSource}
    for (outcome, source), meters in rows.items():
        charged = billed(Outcome(outcome), UsageSource(source), _USAGE)
        assert meters == [meter for meter in Meter if charged.of(meter)], (outcome, source)


async def test_classes_outcomes_and_sources_are_all_explained(world: World) -> None:
    told = (await world.operator.get("/api/v1/metering-policy")).json()
    assert [row["meter"] for row in told["classes"]] == list(Meter)
    assert [row["outcome"] for row in told["outcomes"]] == list(Outcome)
    assert [row["usage_source"] for row in told["usage_sources"]] == list(UsageSource)
    assert all(row["means"] for name in ("classes", "outcomes", "usage_sources") for row in told[name])
    assert told["free"] == list(FREE)


async def test_people_of_a_tenant_and_keys_that_read_usage_may_read_it(world: World) -> None:
    tenant = await world.tenant("Tenant")
    viewer = await world.member("viewer", tenant["id"])
    reader, caller = await _key(world, ["usage:read"]), world.client()
    asked = [await one.get("/api/v1/metering-policy") for one in (viewer, reader)]
    assert [answer.status_code for answer in asked] == [200, 200]
    assert (await caller.get("/api/v1/metering-policy")).status_code == 401


async def test_a_key_for_inference_alone_is_told_which_scope_it_lacks(world: World) -> None:
    answer = await (await _key(world, ["inference"])).get("/api/v1/metering-policy")
    assert answer.status_code == 403
    assert answer.json()["error"]["scope"] == "usage:read"


class _Page(HTMLParser):
    """The tags, ids, cells and text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.texts.append(data.strip())


async def test_the_page_is_public_and_of_plain_accessible_html(world: World) -> None:
    answer = await world.client().get("/metering")
    page = _Page()
    page.feed(answer.text)
    ids = [value for name, value in page.attributes if name == "id"]
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert page.tags.count("h1") == page.tags.count("main") == page.tags.count("title") == 1
    assert page.tags.count("table") == page.tags.count("caption")
    assert len(ids) == len(set(ids))
    assert {value for name, value in page.attributes if name == "aria-labelledby"} <= set(ids)
    assert ("lang", "en") in page.attributes


async def test_the_page_runs_nothing_and_takes_nothing_from_elsewhere(world: World) -> None:
    answer = await world.client().get("/metering")
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    page = _Page()
    page.feed(answer.text)
    assert policy["default-src"] == "'none'"
    assert "script-src" not in policy
    assert not {"script", "style", "form", "iframe"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name == "style" or name.startswith("on")]
    links = [value or "" for name, value in page.attributes if name in ("href", "src")]
    assert all(link.startswith(("/", "#")) for link in links)
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_the_page_says_all_that_the_policy_says(world: World) -> None:
    page = _Page()
    page.feed((await world.client().get("/metering")).text)
    said = " ".join(page.texts)
    words = [
        *(word for one in CLASSES.values() for word in one),
        *OUTCOMES.values(),
        *SOURCES.values(),
        *FREE,
    ]
    assert not [word for word in words if word not in said]
    assert page.texts.count("free") == sum(not meters for row in BILLED.values() for meters in row.values())


def _tables() -> dict[str, list[list[str]]]:
    """The rows of the document's tables, by the first cell of their head and their width."""
    tables: dict[str, list[list[str]]] = {}
    lines = iter(_DOCUMENT.read_text(encoding="utf-8").splitlines())
    for line in lines:
        if line.startswith("|"):
            head, *rows = [_cells(row) for row in [line, *takewhile(lambda row: row.startswith("|"), lines)]]
            tables[f"{head[0]} {len(head)}"] = rows[1:]
    return tables


def _cells(row: str) -> list[str]:
    return [re.sub(r"^`(\w+)`$", r"\1", cell.strip()) for cell in row.strip("|").split("|")]


def test_the_document_has_the_same_tables() -> None:
    tables = _tables()
    assert tables["class 3"] == [[meter.value, *words] for meter, words in CLASSES.items()]
    assert tables["outcome 2"] == [[outcome.value, means] for outcome, means in OUTCOMES.items()]
    assert tables["who counted 2"] == [[source.value, means] for source, means in SOURCES.items()]
    whole = {frozenset(Meter): "all", frozenset[Meter](): "free"}
    assert tables["outcome 5"] == [
        [outcome.value, *(whole[BILLED[outcome][source]] for source in UsageSource)] for outcome in OUTCOMES
    ]


def test_the_document_says_what_is_free_and_how_to_check() -> None:
    said = [line[2:] for line in _DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("- ")]
    assert said == [*FREE, *(f"`{command}`: {shows}." for command, shows in CHECKS)]


def test_every_command_that_checks_is_one_of_ours() -> None:
    commands = (_DOCUMENT.parent / "cli.md").read_text(encoding="utf-8")
    assert not [command for command, _ in CHECKS if f"| `{' '.join(command.split()[:3])}` |" not in commands]
