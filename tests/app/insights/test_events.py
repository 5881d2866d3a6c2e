"""A tenant downloads its lines in the order of its chain, checks them, and sees nobody else's."""

from __future__ import annotations

import asyncio
import base64
import json
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import httpx
import pytest

from app.control.views import usage_events
from app.core.clock import from_ms
from app.core.ids import RequestId
from app.insights.events import EventFilter, Place, Progress, read_on
from app.workers.sealing import seal_lines
from billing.chain.check import Check, Scope
from billing.chain.wire import read_heads
from billing.ledger.corrections import Asked, correct
from billing.metering.model import Usage
from tests.app.insights.metered import Traffic, settled

EVENTS = "/v1/usage/events"
USAGE = Usage(10, 5, 0, 7, 3)
COST = 10 * 540_000 + 5 * 180_000 + 7 * 2_160_000


async def post(traffic: Traffic, amount: int, *, payer: int = 0, key: int = 0, model: str = "small") -> None:
    """Post requests of one key in one transaction, a second after the last ones."""
    at = from_ms(traffic.world.clock.now_ms())
    asked = [traffic.admitted(payer=payer, key=key, model=model, at=at) for _ in range(amount)]
    await traffic.post([(each, settled(each, USAGE)) for each in asked])
    traffic.world.clock.advance(1)


async def seal(traffic: Traffic) -> None:
    await asyncio.to_thread(seal_lines, traffic.world.database.app_url, clock=traffic.world.clock)


def owner(traffic: Traffic, *, payer: int = 0) -> httpx.AsyncClient:
    """An operator that looks at one payer's lines."""
    client = traffic.world.operator
    client.params = httpx.QueryParams(tenant_id=traffic.payers[payer].tenant_id)
    return client


def key_holder(traffic: Traffic, *, payer: int = 0, key: int = 0) -> httpx.AsyncClient:
    return traffic.world.client(traffic.payers[payer].keys[key][2])


async def page(client: httpx.AsyncClient, **asked: Any) -> tuple[list[bytes], dict[str, Any]]:
    """The lines of a page, and its end."""
    answer = await client.get(EVENTS, params=client.params.merge(asked))
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    *lines, end, nothing = answer.content.split(b"\n")
    assert nothing == b""
    return lines, json.loads(end)


def plain(lines: list[bytes]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines]


def checked(lines: list[bytes], scope: Scope | None = None) -> Check:
    check = Check(scope or Scope(), zone=ZoneInfo("UTC"))
    for line in lines:
        check.take(line)
    check.finish()
    return check


async def test_what_is_downloaded_passes_the_check_and_sums_to_what_was_posted(traffic: Traffic) -> None:
    await post(traffic, 3)
    await post(traffic, 2, key=1, model="large")
    assert (await page(owner(traffic)))[0] == []
    await seal(traffic)
    lines, end = await page(owner(traffic))
    assert end == {"object": "usage.page", "version": 1, "lines": 5, "next": None}
    heads = (await owner(traffic).get(f"{EVENTS}/heads")).content
    check = checked(lines, Scope(heads=tuple(read_heads(heads))))
    assert (check.findings, check.sums.totals()) == ([], {"USD": 5 * COST})
    posted = {admitted.request_id for admitted, _ in traffic.posted}
    assert {line["request_id"] for line in plain(lines)} == posted
    assert {line["model"] for line in plain(lines)} == {"small", "large"}


async def test_pages_are_complete_and_without_repeats_while_requests_are_settled(traffic: Traffic) -> None:
    async def settle() -> None:
        for _ in range(6):
            await post(traffic, 3)
            await seal(traffic)

    settling = asyncio.create_task(settle())
    client, lines, after, done = owner(traffic), [], None, False
    while not done:
        done = settling.done()
        got, end = await page(client, limit=4, **({"after": after} if after else {}))
        lines += got
        if end["next"] is not None:
            after, done = end["next"], False
        elif got:
            after = cursor_after(got[-1])
    await settling
    assert len({line["request_id"] for line in plain(lines)}) == len(lines) == 18
    assert checked(lines).findings == []


async def test_what_is_rare_is_found_window_by_window_whatever_is_sealed_meanwhile(traffic: Traffic) -> None:
    tenant_id, (_, key_id, _) = traffic.payers[0].tenant_id, traffic.payers[0].keys[1]
    only = EventFilter(tenant_id, key_ids=(key_id,), window=3)
    for key in (0, 0, 0, 1, 0, 0, 0, 1):
        await post(traffic, 1 if key else 2, key=key)
    await seal(traffic)
    lines, ends = await rare_page(traffic, only, after=None)
    while ends[-1]["next"] is not None:
        await post(traffic, 1, key=len(ends) % 2)
        await seal(traffic)
        after = usage_events.place_of(ends[-1]["next"], tenant_id=tenant_id)
        got, end = await rare_page(traffic, only, after=after)
        lines, ends = lines + got, ends + end
    assert {line["key_id"] for line in plain(lines)} == {key_id}
    posted = [admitted for admitted, _ in traffic.posted if admitted.key_id == key_id]
    assert len({line["request_id"] for line in plain(lines)}) == len(lines) == len(posted) > 2
    assert ends[0]["lines"] == 0
    assert max(end["lines"] for end in ends) <= 2


async def rare_page(
    traffic: Traffic, only: EventFilter, *, after: Place | None
) -> tuple[list[bytes], list[dict[str, Any]]]:
    """A page of at most two lines, or of two windows, and its end."""
    engine = traffic.world.engine
    async with engine.connect() as connection:
        first = await read_on(connection, only, progress=Progress(after), limit=2)
    page = usage_events.stream_page(engine, only, first=first, limit=2, most_windows=2)
    *lines, end = b"".join([piece async for piece in page]).splitlines()
    return lines, [json.loads(end)]


def cursor_after(line: bytes) -> str:
    """Where a reader that has seen all goes on later; cursors are opaque, this test makes one."""
    told = json.loads(line)
    place = [str(told["chain"]["sequence"]), told["chain"]["day"], told["tenant_id"]]
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


async def test_a_key_sees_its_own_project_and_proves_it_within_the_whole_chain(traffic: Traffic) -> None:
    await post(traffic, 2)
    await post(traffic, 3, key=1)
    await post(traffic, 1)
    await seal(traffic)
    own, _ = await page(key_holder(traffic))
    assert {line["project_id"] for line in plain(own)} == {traffic.payers[0].keys[0][0]}
    assert len(own) == 3
    assert checked(own, Scope(partial=True)).findings == []
    whole, _ = await page(key_holder(traffic), withheld="true")
    check = checked(whole)
    assert (check.findings, dict(check.kinds)) == ([], {"event": 3, "withheld": 3})
    others = [line for line in plain(whole) if line["object"] == "usage.withheld"]
    assert all(line.keys() == {"object", "version", "tenant_id", "line", "chain"} for line in others)


async def test_a_range_that_ends_before_it_begins_is_refused(traffic: Traffic) -> None:
    answer = await owner(traffic).get(EVENTS, params={"from": "2026-11-30", "to": "2026-11-29"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "parameter_invalid")


async def test_no_other_tenant_sees_a_line_or_goes_on_from_a_cursor(traffic: Traffic) -> None:
    await post(traffic, 3)
    await post(traffic, 1, payer=1)
    await seal(traffic)
    _, end = await page(owner(traffic), limit=1)
    theirs, _ = await page(key_holder(traffic, payer=1))
    assert {line["tenant_id"] for line in plain(theirs)} == {traffic.payers[1].tenant_id}
    assert len(theirs) == 1
    stranger = key_holder(traffic, payer=1)
    refused = [
        ({"after": end["next"]}, 400),
        ({"tenant_id": traffic.payers[0].tenant_id}, 404),
    ]
    for params, status in refused:
        assert (await stranger.get(EVENTS, params=params)).status_code == status
    heads = await stranger.get(f"{EVENTS}/heads", params={"tenant_id": traffic.payers[0].tenant_id})
    assert heads.status_code == 404
    assert [head.sequence for head in read_heads((await stranger.get(f"{EVENTS}/heads")).content)] == [1]


async def test_filters_leave_out_all_else(traffic: Traffic) -> None:
    start = from_ms(traffic.world.clock.now_ms())
    await post(traffic, 2)
    await post(traffic, 1, key=1, model="large")
    traffic.world.clock.advance(86_400)
    await post(traffic, 3)
    await seal(traffic)
    client, (project, key, _) = owner(traffic), traffic.payers[0].keys[1]
    day = from_ms(traffic.world.clock.now_ms()).date().isoformat()
    second = datetime.fromtimestamp(start.timestamp() + 1, UTC).isoformat()
    for asked, amount in (
        ({"project_id": project}, 1),
        ({"key_id": key}, 1),
        ({"model": "large"}, 1),
        ({"model": "none such"}, 0),
        ({"from": day}, 3),
        ({"to": day}, 3),
        ({"from": second}, 4),
        ({"to": second}, 2),
        ({"from": day, "to": day}, 0),
    ):
        lines, end = await page(client, **asked)
        assert (len(lines), end["lines"]) == (amount, amount), asked


async def test_a_correction_is_a_line_of_its_own(traffic: Traffic) -> None:
    await post(traffic, 2)
    await seal(traffic)
    request_id = RequestId(traffic.posted[0][0].request_id)
    async with traffic.world.engine.begin() as connection:
        asked = Asked(request_id, reason="counted twice", reference="c-1", created_by="me", amount=5_000_000)
        await correct(connection, asked, now=from_ms(traffic.world.clock.now_ms()))
    await seal(traffic)
    lines, _ = await page(owner(traffic))
    check = checked(lines)
    assert (check.findings, dict(check.kinds)) == ([], {"event": 2, "correction": 1})
    assert check.sums.totals() == {"USD": 2 * COST - 5_000_000}
    told = plain(lines)[-1]
    assert (told["request_id"], told["amount"], told["reason"]) == (request_id, "0.000005", "counted twice")


async def test_names_with_nul_and_any_script_come_whole(traffic: Traffic) -> None:
    at = from_ms(traffic.world.clock.now_ms())
    admitted = traffic.admitted(at=at)
    odd = settled(admitted, USAGE)
    await traffic.post(
        [(admitted, type(odd)(**{**_fields(odd), "finish_reason": "\0 \u2028 称 \U0001f600"}))]
    )
    await seal(traffic)
    lines, _ = await page(owner(traffic))
    assert plain(lines)[0]["finish_reason"] == "\ufffd \u2028 称 \U0001f600"
    assert checked(lines).findings == []


def _fields(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__struct_fields__}


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"from": "yesterday"}, "from"),
        ({"to": "2026-12-01T00:00:00"}, "to"),
        ({"after": "WyIxIl0"}, "after"),
        ({"after": "WyIxIiwgIm5vIGRheSIsICJ0ZW5fIl0"}, "after"),
    ],
)
async def test_what_makes_no_question_is_refused(traffic: Traffic, asked: dict[str, str], param: str) -> None:
    client = owner(traffic)
    answer = await client.get(EVENTS, params=client.params.merge(asked))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


async def test_an_operator_says_whose_lines(traffic: Traffic) -> None:
    answer = await traffic.world.operator.get(EVENTS)
    assert answer.json()["error"]["param"] == "tenant_id"


async def test_heads_tell_each_day_and_which_one_is_open(traffic: Traffic) -> None:
    for amount in (1, 2, 3):
        await post(traffic, amount)
        await seal(traffic)
        traffic.world.clock.advance(2 * 86_400)
    heads = (await owner(traffic).get(f"{EVENTS}/heads")).json()["data"]
    assert [(head["sequence"], head["open"]) for head in heads] == [(1, False), (2, False), (3, True)]
    client, middle = owner(traffic), heads[1]["day"]
    some = await client.get(
        f"{EVENTS}/heads", params=client.params.merge({"from": middle, "to": heads[2]["day"]})
    )
    assert [head["day"] for head in some.json()["data"]] == [middle]
    lines, _ = await page(owner(traffic))
    kept = tuple(read_heads(json.dumps({"data": heads}).encode()))
    assert checked(lines, Scope(heads=kept)).findings == []
    assert checked(lines[:1] + lines[3:], Scope(heads=kept)).findings != []
