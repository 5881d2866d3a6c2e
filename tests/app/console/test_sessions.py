"""Signing in and out: sessions, form tokens, and no way round them."""

from __future__ import annotations

from collections.abc import AsyncIterator

from tests.app.console.conftest import ADMIN, PASSWORD, Site
from tests.app.console.forms import hidden_fields


async def test_a_stranger_is_sent_to_the_login_and_back(site: Site) -> None:
    for path in ("/", "/requests", "/requests/req_1"):
        visitor = site.visitor()
        sent = await visitor.get(path)
        assert sent.status_code == 303
        form = hidden_fields((await visitor.get(f"http://console.example{sent.headers['location']}")).text)
        assert form["next"] == f"/console{path}"
        answer = await visitor.post("/login", data={**form, "email": ADMIN, "password": PASSWORD})
        assert answer.headers["location"] == f"/console{path}"


async def test_after_signing_in_nobody_is_sent_to_another_site(site: Site) -> None:
    for wanted in ("//evil.example/", "https://evil.example/", "/console/\\evil", "/elsewhere", ""):
        visitor = site.visitor()
        form = hidden_fields((await visitor.get("/login")).text) | {"next": wanted}
        answer = await visitor.post("/login", data={**form, "email": ADMIN, "password": PASSWORD})
        assert answer.headers["location"] == "/console/"


async def test_the_session_cookie_is_out_of_reach_of_scripts_and_other_sites(site: Site) -> None:
    visitor = site.visitor()
    form = hidden_fields((await visitor.get("/login")).text)
    answer = await visitor.post("/login", data={**form, "email": ADMIN, "password": PASSWORD})
    [cookie] = [c for c in answer.headers.get_list("set-cookie") if c.startswith("steelyard_session=")]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie


async def test_a_wrong_password_is_told_like_an_unknown_person(site: Site) -> None:
    visitor = site.visitor()
    form = hidden_fields((await visitor.get("/login")).text)
    wrong = await visitor.post("/login", data={**form, "email": ADMIN, "password": "wrong"})
    stranger = {**form, "email": "who@steelyard.example", "password": "wrong"}
    unknown = await visitor.post("/login", data=stranger)
    assert (wrong.status_code, unknown.status_code) == (401, 401)
    assert 'role="alert"' in wrong.text
    assert wrong.text.replace(ADMIN, "") == unknown.text.replace("who@steelyard.example", "")
    assert "steelyard_session" not in visitor.cookies


async def test_guessing_is_slowed_down(site: Site) -> None:
    visitor = site.visitor()
    form = hidden_fields((await visitor.get("/login")).text)
    for _ in range(10):
        await visitor.post("/login", data={**form, "email": "a@steelyard.example", "password": "guess"})
    slowed = await visitor.post("/login", data={**form, "email": ADMIN, "password": PASSWORD})
    assert slowed.status_code == 429
    assert int(slowed.headers["retry-after"]) > 0


async def test_a_form_of_another_site_is_refused(site: Site) -> None:
    visitor = await site.signed_in()
    for token in ({}, {"token": ""}, {"token": "0" * 64}):
        assert (await visitor.post("/logout", data=token)).status_code == 403
    assert (await visitor.get("/")).status_code == 200
    fresh = site.visitor()
    assert (await fresh.post("/login", data={"email": ADMIN, "password": PASSWORD})).status_code == 403


async def test_a_form_without_an_honest_length_is_not_read(site: Site) -> None:
    visitor = site.visitor()
    form = hidden_fields((await visitor.get("/login")).text)
    huge = await visitor.post("/login", data={**form, "email": "x" * 20_000})
    assert huge.status_code == 413

    async def endless() -> AsyncIterator[bytes]:
        yield b"token="

    chunked = await visitor.post(
        "/login", content=endless(), headers={"content-type": "application/x-www-form-urlencoded"}
    )
    assert chunked.status_code == 413


async def test_signing_out_ends_the_session_on_the_server(site: Site) -> None:
    visitor = await site.signed_in()
    secret = visitor.cookies["steelyard_session"]
    form = hidden_fields((await visitor.get("/")).text)
    assert (await visitor.post("/logout", data=form)).status_code == 303
    thief = site.visitor()
    thief.cookies.set("steelyard_session", secret)
    assert (await thief.get("/")).status_code == 303


async def test_a_session_ends_with_its_time(site: Site) -> None:
    visitor = await site.signed_in()
    site.shop.clock.advance(13 * 3600)
    assert (await visitor.get("/")).status_code == 303
