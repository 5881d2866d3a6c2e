"""What the pages show, to whom, and how."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest
from sqlalchemy import insert, text

import app.console
from app.console.app import create_console
from app.core import ids
from app.core.clock import from_ms
from app.core.database import connect_engine
from app.core.settings import Settings
from app.identity.model import Role
from billing.journal.tables import parked_record
from tests.app.console.conftest import REASON, Site
from tests.app.console.forms import hidden_fields
from tests.database import Database

ROOT = Path(app.console.__file__).parent


async def test_home_shows_todays_usage_the_newest_requests_the_wallet_and_a_first_request(site: Site) -> None:
    visitor = await site.signed_in()
    page = (await visitor.get("/")).text
    assert "0.0006084 USD" in page  # 700 × 0.54 + 200 × 0.18 + 90 × 2.16, per million
    assert site.request_id in page
    assert site.refused_id in page
    assert "999.9993916 USD" in page
    assert "curl http://127.0.0.1:8123/v1/chat/completions" in page


async def test_a_request_is_explained_down_to_the_ledger(site: Site) -> None:
    visitor = await site.signed_in()
    page = (await visitor.get(f"/requests/{site.request_id}")).text
    assert "Least predicted wait (12.5 ms) of 1 that could take it." in page
    for amount in ("0.000378", "0.000036", "0.0001944", "0.0006084"):
        assert amount in page
    assert "txn_" in page
    assert "-0.0006084" in page


async def test_a_refusal_is_explained_with_limit_observed_and_remedy(site: Site) -> None:
    visitor = await site.signed_in()
    page = (await visitor.get(f"/requests/{site.refused_id}")).text
    for piece in (REASON, "40000", "52310", "21.0", "Retry-After"):
        assert piece in page


async def test_what_was_set_aside_says_why_to_staff_and_is_no_broken_page(site: Site) -> None:
    request_id = ids.request_id()
    row = {
        "incarnation_id": "gwi_1",
        "file_offset": 7,
        "request_id": request_id,
        "reason": "no such <tenant>",
    }
    row |= {"record": b"", "holds": [], "parked_at": from_ms(site.shop.clock.now_ms())}
    async with site.shop.engine.begin() as connection:
        await connection.execute(insert(parked_record).values(row))
    page = await (await site.signed_in()).get(f"/requests/{request_id}")
    assert page.status_code == 200
    assert "no such &lt;tenant&gt;" in page.text


async def test_unknown_usage_is_a_dash_never_zero(site: Site) -> None:
    visitor = await site.signed_in()
    page = (await visitor.get("/requests", params={"outcome": "client_cancelled"})).text
    [row] = re.findall(r"<tr>\s*<td>.*?</tr>", page, flags=re.DOTALL)
    assert row.count('<td class="number">–</td>') == 3


async def test_filters_narrow_the_log_and_can_be_cleared(site: Site) -> None:
    visitor = await site.signed_in()
    refused = (await visitor.get("/requests", params={"outcome": "refused"})).text
    assert site.refused_id in refused
    assert site.request_id not in refused
    none = (await visitor.get("/requests", params={"model": "no-such"})).text
    assert "Nothing matches these filters." in none
    older = (await visitor.get("/requests", params={"before": site.request_id})).text
    assert site.request_id not in older


async def test_what_came_from_clients_is_escaped(site: Site) -> None:
    visitor = await site.signed_in()
    for path in ("/", "/requests", f"/requests/{site.refused_id}"):
        page = (await visitor.get(path)).text
        assert "&lt;b&gt;small&lt;/b&gt;" in page
        assert "<b>small" not in page


async def test_a_member_of_another_tenant_sees_nothing_of_it(site: Site) -> None:
    other = ids.tenant_id()
    async with site.shop.owner.begin() as connection:
        await connection.exec_driver_sql(
            "INSERT INTO tenant (id, name, currency) VALUES ($1, 'Other', 'USD')", (other,)
        )
    stranger = await site.member(Role.DEVELOPER, tenant_id=other)
    for path in ("/", "/requests"):
        page = (await stranger.get(path)).text
        assert site.request_id not in page
        assert "Acme" not in page
        assert "0.0006084" not in page
    assert (await stranger.get(f"/requests/{site.request_id}")).status_code == 404


async def test_a_member_sees_the_own_tenant_only(site: Site) -> None:
    viewer = await site.member(Role.VIEWER, tenant_id=site.shop.catalogue.tenant_id)
    page = (await viewer.get("/")).text
    assert site.request_id in page
    assert (await viewer.get(f"/requests/{site.request_id}")).status_code == 200


async def test_what_is_not_there_is_told_on_a_page_of_ours(site: Site) -> None:
    visitor = await site.signed_in()
    for method, path, status in [
        ("GET", "/nowhere", 404),
        ("GET", "/requests/req_unknown", 404),
        ("PUT", "/login", 405),
        ("GET", "/static/%2e%2e/app.py", 404),
        ("GET", "/static/none.css", 404),
    ]:
        answer = await visitor.request(method, path)
        assert (path, answer.status_code) == (path, status)
        assert "<h1>" in answer.text


async def test_without_a_database_the_page_says_so_and_when_to_come_back() -> None:
    engine = connect_engine("postgresql://nobody@127.0.0.1:1/none")
    transport = httpx.ASGITransport(app=create_console(engine, Settings()))
    async with httpx.AsyncClient(transport=transport, base_url="http://console.example") as visitor:
        answer = await visitor.get("/", headers={"cookie": "steelyard_session=some"})
    await engine.dispose()
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert "The database can" in answer.text


async def test_a_database_that_is_too_busy_is_said_to_be_so(database: Database) -> None:
    busy = connect_engine(database.app_url, pool_size=1, statement_timeout_s=0.3)
    transport = httpx.ASGITransport(app=create_console(busy, Settings()))
    rival = connect_engine(database.owner_url)
    async with (
        rival.begin() as holder,
        httpx.AsyncClient(transport=transport, base_url="http://console.example") as visitor,
    ):
        await holder.execute(text("LOCK TABLE session IN ACCESS EXCLUSIVE MODE"))
        answer = await visitor.get("/", headers={"cookie": "steelyard_session=some"})
    await busy.dispose()
    await rival.dispose()
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")


async def test_every_answer_carries_a_strict_policy_and_pages_are_not_cached(site: Site) -> None:
    visitor = await site.signed_in()
    for path in ("/", "/requests", "/login", "/static/console.css", "/nowhere"):
        answer = await visitor.get(path)
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'self';")
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        if answer.headers["content-type"].startswith("text/html"):
            assert answer.headers["cache-control"] == "no-store"


class _Semantics(HTMLParser):
    """Counts what a page must and must not have."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.labelled: set[str] = set()
        self.inputs: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.tags.append(tag)
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag in ("script", "style") or "style" in named or any(name.startswith("on") for name in named):
            self.faults.append(f"inline code or style in {tag}")
        if tag == "th" and named.get("scope") not in ("col", "row"):
            self.faults.append("a heading cell without scope")
        if tag == "label":
            self.labelled.add(named.get("for") or "")
        if tag in ("input", "select") and named.get("type") != "hidden":
            self.inputs.add(named.get("id") or "")
        for name in ("src", "href", "action"):
            if re.match(r"(https?:)?//", named.get(name) or ""):
                self.faults.append(f"{tag} leads outside")


async def test_pages_are_made_of_plain_accessible_html(site: Site) -> None:
    visitor = await site.signed_in()
    for path in ("/", "/requests", f"/requests/{site.request_id}", "/login", "/nowhere"):
        page = _Semantics()
        page.feed((await visitor.get(path)).text)
        assert not page.faults, path
        assert page.tags.count("h1") == page.tags.count("main") == 1
        assert page.tags.count("table") == page.tags.count("caption")
        assert len(page.ids) == len(set(page.ids))
        assert page.inputs <= page.labelled


async def test_every_form_of_a_signed_in_page_carries_its_token(site: Site) -> None:
    visitor = await site.signed_in()
    assert len(hidden_fields((await visitor.get("/")).text)["token"]) == 64


def test_the_style_sheet_asks_for_nothing_from_outside_and_is_small() -> None:
    sheet = (ROOT / "static" / "console.css").read_text(encoding="utf-8")
    assert "url(" not in sheet
    assert "@import" not in sheet
    assert len(sheet.encode()) < 20_000


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(
    ("ink", "ground"),
    [
        ("ink", "ground"),
        ("ink", "surface"),
        ("quiet", "ground"),
        ("quiet", "surface"),
        ("accent", "surface"),
        ("accent", "ground"),
        ("accent-ink", "accent"),
        ("bad", "surface"),
        ("good", "surface"),
    ],
)
def test_text_stands_out_from_its_ground_by_4_5_to_1(theme: int, ink: str, ground: str) -> None:
    sheet = (ROOT / "static" / "console.css").read_text(encoding="utf-8")
    tokens = {n: (a, b) for n, a, b in re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", sheet)}
    lights = sorted((_luminance(tokens[ink][theme]), _luminance(tokens[ground][theme])), reverse=True)
    assert (lights[0] + 0.05) / (lights[1] + 0.05) >= 4.5


@pytest.mark.parametrize("path", ["/requests?model=a%00b", "/requests/req_%00", "/requests?before=%00"])
async def test_a_value_that_no_text_can_be_is_the_visitors_mistake(site: Site, path: str) -> None:
    visitor = await site.signed_in()
    assert (await visitor.get(path)).status_code in (200, 400)


async def test_an_e_mail_that_no_text_can_be_is_the_visitors_mistake(site: Site) -> None:
    visitor = site.visitor()
    form = hidden_fields((await visitor.get("/login")).text)
    answer = await visitor.post("/login", data={**form, "email": "a\0b@steelyard.example", "password": "x"})
    assert answer.status_code == 400
