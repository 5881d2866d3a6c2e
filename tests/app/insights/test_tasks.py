"""Tasks over the API: made, given a budget, billed by model, closed; each within its tenant and project."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from app.core.ids import TaskId
from app.core.money import format_picos
from billing.metering.model import Usage
from tests.app.insights.metered import Traffic, settled

AT = datetime(2026, 9, 21, tzinfo=UTC)


@pytest.fixture
async def task(traffic: Traffic) -> dict[str, Any]:
    body = {"project_id": traffic.payers[0].keys[0][0], "name": "import 1"}
    return await traffic.world.made("/tasks", body)


async def _serve(traffic: Traffic, task_id: str, models: list[str]) -> int:
    """One request of the task for each model; returns what they cost."""
    made = [
        msgspec.structs.replace(
            traffic.admitted(at=AT + timedelta(minutes=n), model=model), task_id=TaskId(task_id)
        )
        for n, model in enumerate(models)
    ]
    requests = [(each, settled(each, Usage(40, 20, output=40))) for each in made]
    await traffic.post(requests)
    return sum(end.cost_picos for _, end in requests)


async def _shown(traffic: Traffic, task_id: str) -> dict[str, Any]:
    answer = await traffic.world.operator.get(f"/api/v1/tasks/{task_id}")
    assert answer.is_success, answer.text
    return dict(answer.json())


async def _changed(traffic: Traffic, task_id: str, **changes: Any) -> dict[str, Any]:
    answer = await traffic.world.operator.patch(f"/api/v1/tasks/{task_id}", json=changes)
    assert answer.is_success, answer.text
    return dict(answer.json())


async def test_a_tasks_bill_is_the_sum_of_its_models(traffic: Traffic, task: dict[str, Any]) -> None:
    cost = await _serve(traffic, task["id"], ["small", "small", "large"])
    shown = await _shown(traffic, task["id"])
    assert (shown["cost"], shown["net_cost"], shown["requests"], shown["tokens"]) == (
        format_picos(cost),
        format_picos(cost),
        3,
        300,
    )
    assert [(line["model"], line["requests"], line["output"]) for line in shown["lines"]] == [
        ("small", 2, 80),
        ("large", 1, 40),
    ]
    assert (shown["first_at"], shown["last_at"]) == ("2026-09-21T00:00:00Z", "2026-09-21T00:02:00Z")
    correction = {"amount": "0.00001", "reason": "goodwill"}
    path = f"/requests/{traffic.posted[0][0].request_id}/corrections"
    await traffic.world.made(path, correction, **{"idempotency-key": "c"})
    shown = await _shown(traffic, task["id"])
    assert (shown["cost"], shown["net_cost"]) == (format_picos(cost), format_picos(cost - 10_000_000))


async def test_a_budget_counts_what_the_task_has_cost_and_can_be_moved_and_taken_away(
    traffic: Traffic, task: dict[str, Any]
) -> None:
    cost = await _serve(traffic, task["id"], ["small"])
    given = await _changed(traffic, task["id"], budget="2")
    assert (given["budget"], given["available"]) == ("2", format_picos(2 * 10**12 - cost))
    assert (await _changed(traffic, task["id"], budget="3"))["available"] == format_picos(3 * 10**12 - cost)
    assert (await _changed(traffic, task["id"], budget="0"))["available"] == "0"
    gone = await _changed(traffic, task["id"], budget=None)
    assert (gone["budget"], gone["available"]) == (None, None)
    again = await _changed(traffic, task["id"], budget="1")
    assert again["available"] == format_picos(10**12 - cost)
    rows = (await traffic.world.operator.get("/api/v1/audit-log", params={"limit": 1})).json()["data"]
    assert (rows[0]["action"], rows[0]["before"]["budget"], rows[0]["after"]["budget"]) == (
        "task.change",
        None,
        "1",
    )


async def test_a_task_is_closed_and_opened_again(traffic: Traffic, task: dict[str, Any]) -> None:
    closed = await traffic.world.made(f"/tasks/{task['id']}/close")
    assert (closed["status"], closed["closed_at"] is not None) == ("closed", True)
    opened = await _changed(traffic, task["id"], status="open", budget="5")
    assert (opened["status"], opened["closed_at"], opened["budget"]) == ("open", None, "5")
    body = {"project_id": task["project_id"], "name": task["name"]}
    assert (await traffic.world.operator.post("/api/v1/tasks", json=body)).status_code == 409
    for wrong in ({"name": " x"}, {"name": ""}, {"name": "a\nb"}, {"budget": "-1"}, {"budget": "x"}):
        answer = await traffic.world.operator.post("/api/v1/tasks", json={**body, "name": "n", **wrong})
        assert answer.status_code == 400, wrong


async def test_tasks_are_listed_within_the_reach_of_the_caller(
    traffic: Traffic, task: dict[str, Any]
) -> None:
    world, payer, other = traffic.world, traffic.payers[0], traffic.payers[1]
    second = await world.made("/tasks", {"project_id": payer.keys[1][0], "name": "import 2", "budget": "1"})
    own, neighbour = world.client(payer.keys[0][2]), world.client(payer.keys[1][2])
    developer = await world.member("developer", payer.tenant_id)
    stranger = await world.member("developer", other.tenant_id)
    seen = {
        name: [row["name"] for row in (await client.get("/api/v1/tasks")).json()["data"]]
        for name, client in (("own", own), ("neighbour", neighbour), ("dev", developer), ("out", stranger))
    }
    assert seen == {
        "own": ["import 1"],
        "neighbour": ["import 2"],
        "dev": ["import 2", "import 1"],
        "out": [],
    }
    path = f"/api/v1/tasks/{second['id']}"
    unknown = f"/api/v1/tasks/tsk_{'f' * 32}"
    for client in (own, stranger):
        answers = [(await client.get(each)).json()["error"] for each in (path, unknown)]
        told = [{**each, "request_id": "", "message": each["message"][:20]} for each in answers]
        assert told[0] == told[1]
    assert (await stranger.patch(path, json={"budget": "9"})).status_code == 404
    assert (await stranger.post(f"{path}/close")).status_code == 404
    assert (await own.post(f"{path}/close")).status_code == 403
    assert (await developer.post(f"{path}/close")).json()["status"] == "closed"
    only = {"status": "open", "name": "import 1"}
    assert len((await developer.get("/api/v1/tasks", params=only)).json()["data"]) == 1
