"""`steelyard limits`, `plans` and `tasks` read limits as people write them, and say what a change does."""

from __future__ import annotations

from typing import Any

import pytest

from app.cli.errors import CommandFailed
from app.cli.limit_terms import instant, local, parse_limit, write_limit, zone_of
from tests.app.cli.conftest import Steelyard
from tests.app.cli.fake_control import FakeControl

TENANT = {"id": "ten_1", "name": "Acme", "currency": "EUR", "timezone": "Europe/Berlin"}
LIMIT = {
    "scope_kind": "key",
    "scope_id": "key_1",
    "scope_name": "ci",
    "what": "tokens",
    "window": "minute",
    "model": None,
    "amount": "40000",
    "unit": "tokens",
    "used": "10",
    "leased": "5",
    "available": "39985",
    "resets_at": "2026-12-01T00:30:00Z",
    "source": {"kind": "plan", "id": "pln_1", "name": "Team", "until": "2026-12-31T23:00:00Z"},
    "peak": {"amount": "31000", "at": "2026-11-30T00:00:00Z"},
    "refused": {"count": 3, "since": "2026-11-24T00:00:00Z", "last": None},
}
WALLET = {**LIMIT, "what": "picos", "window": "balance", "peak": None, "resets_at": None}
WALLET |= {"source": {"kind": "wallet", "id": "wal_1", "name": "what was granted", "until": None}}
PLAN = {"id": "pln_1", "name": "Team", "currency": "EUR", "tenants": 2}
PLANNED = {"level": "key", "what": "tokens", "window": "minute", "model": None, "amount": "1", "burst": None}


def _standing(control: FakeControl, *rows: dict[str, Any], peaks_known: bool = True) -> None:
    facts = {"timezone": "Europe/Berlin", "peaks_since": "2026-11-24T00:00:00Z", "peaks_known": peaks_known}
    control.gives("GET /limits", {"data": list(rows), "has_more": False, "next": None, **facts})


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("tokens/minute=40000", {"what": "tokens", "window": "minute", "amount": "40000"}),
        ("money/month=25.5", {"what": "picos", "window": "month", "amount": "25.5"}),
        ("concurrent=8", {"what": "concurrent", "window": "running", "amount": "8"}),
        ("max_output=none", {"what": "max_output", "window": "request", "amount": None}),
        (
            "requests/minute=6,burst=2,model=org/m:8b",
            {"what": "requests", "window": "minute", "amount": "6", "burst": "2", "model": "org/m:8b"},
        ),
    ],
)
def test_a_limit_is_read_as_people_write_it(text: str, fields: dict[str, Any]) -> None:
    assert parse_limit(text, with_level=False) == fields
    assert parse_limit(f"project:{text}", with_level=True) == {"level": "project", **fields}
    row = {"model": None, **fields}
    assert text.startswith(write_limit(row).partition(",")[0])


@pytest.mark.parametrize(
    "text", ["", "tokens", "tokens=5", "tokens/minute", "tokens/minute=much", "a/b=1,c=2", "key:concurrent=1"]
)
def test_what_is_no_limit_is_a_usage_error_that_shows_the_form(text: str) -> None:
    with pytest.raises(CommandFailed) as failed:
        parse_limit(text, with_level=False)
    assert "WHAT/WINDOW=AMOUNT" in failed.value.remedy


def test_days_begin_at_midnight_in_the_tenants_zone() -> None:
    berlin = zone_of("Europe/Berlin")
    assert instant("2026-12-31", berlin) == "2026-12-31T00:00:00+01:00"
    assert instant("2026-12-31T00:00:00Z", berlin) == "2026-12-31T00:00:00+00:00"
    assert local("2026-07-01T22:30:00Z", berlin) == "2026-07-02 00:30"
    with pytest.raises(CommandFailed):
        instant("tomorrow", berlin)


def test_limits_are_shown_with_where_they_come_from_in_the_tenants_time(
    steelyard: Steelyard, control: FakeControl
) -> None:
    _standing(control, LIMIT)
    result = steelyard("limits", "show", "--key", "key_1", "--model", "m")
    for piece in ("key ci", "tokens/minute", "40000", "39985", "31000", "plan Team until 2027-01-01 00:00"):
        assert piece in result.out
    assert "2026-12-01 01:30" in result.out
    assert control.asked[-1].path == "/limits?key_id=key_1&model=m"
    assert steelyard("limits", "show", "--key", "key_1", "--json").json["data"] == [LIMIT]


def test_an_unlimited_tenant_is_told_how_to_limit_it(steelyard: Steelyard, control: FakeControl) -> None:
    control.lists("/tenants", TENANT)
    _standing(control, WALLET, peaks_known=False)
    result = steelyard("limits", "show")
    assert "steelyard plans assign PLAN" in result.err
    assert "no peaks" in result.err
    assert control.asked[-1].path == "/limits?tenant_id=ten_1"


def test_a_limit_is_set_for_a_key_with_its_end_in_the_tenants_zone(
    steelyard: Steelyard, control: FakeControl
) -> None:
    control.gives("GET /keys/key_1", {"id": "key_1", "tenant_id": "ten_1"})
    control.gives("GET /tenants/ten_1", TENANT)
    control.gives("POST /tenants/ten_1/limit-overrides", {"id": "ovr_1"}, status=201)
    asked = (
        "limits",
        "set",
        "tokens/minute=80000",
        "--key",
        "key_1",
        "--reason",
        "launch",
        "--expires",
        "2026-12-31",
    )
    assert steelyard(*asked).code == 6
    result = steelyard(*asked, "--yes")
    assert "steelyard limits unset ovr_1" in result.err
    sent = control.asked[-1]
    assert sent.idempotency_key
    assert sent.body == {
        "what": "tokens",
        "window": "minute",
        "amount": "80000",
        "scope_kind": "key",
        "scope_id": "key_1",
        "reason": "launch",
        "effective_from": None,
        "expires_at": "2026-12-31T00:00:00+01:00",
    }
    control.gives("POST /limit-overrides/ovr_1/revoke", {"id": "ovr_1"})
    assert steelyard("limits", "unset", "ovr_1", "--yes").code == 0


def test_overrides_are_listed_and_none_is_said(steelyard: Steelyard, control: FakeControl) -> None:
    control.gives("GET /tenants/ten_1", TENANT)
    control.lists("/tenants/ten_1/limit-overrides")
    assert "the plan's limits hold" in steelyard("limits", "overrides", "--tenant", "ten_1").err
    times = {"effective_from": "2026-12-01T00:00:00Z", "expires_at": None, "revoked_at": None}
    row = {**LIMIT, **times, "id": "ovr_1", "amount": None, "reason": "load test"}
    control.lists("/tenants/ten_1/limit-overrides", row)
    assert "no limit" in steelyard("limits", "overrides", "--tenant", "ten_1").out


def test_a_limit_is_tried_and_the_answer_says_what_it_cannot_know(
    steelyard: Steelyard, control: FakeControl
) -> None:
    control.gives("GET /projects/prj_1", {"id": "prj_1", "tenant_id": "ten_1"})
    control.gives("GET /tenants/ten_1", TENANT)
    answer = {
        "says": "would have refused 312 of 10482 requests",
        "start": "2026-11-24T00:00:00Z",
        "end": "2026-12-01T00:00:00Z",
        "timezone": "Europe/Berlin",
        "days": [{"day": "2026-11-24", "requests": 10482, "refused": 312}],
        "first": [{"request_id": "req_1", "at": "2026-11-24T00:00:00Z", "needed": "100"}],
        "notes": ["refused requests are not in the past"],
    }
    control.gives("POST /limits/dry-run", answer)
    result = steelyard("limits", "try", "tokens/minute=40000", "--project", "prj_1", "--from", "2026-11-24")
    assert "would have refused 312 of 10482 requests" in result.out
    assert "req_1" in result.err
    assert "note: refused requests" in result.err
    assert control.asked[-1].body["project_id"] == "prj_1"
    assert control.asked[-1].body["from"] == "2026-11-24T00:00:00+01:00"
    assert steelyard("limits", "try", "tokens/minute=none", "--project", "prj_1").code == 2


def test_a_plan_is_found_by_name_and_assigned(steelyard: Steelyard, control: FakeControl) -> None:
    control.lists("/plans", PLAN)
    control.gives("GET /tenants/ten_1", TENANT)
    made = {"assignment": {"id": "pas_1", "plan_id": "pln_1"}}
    control.gives("POST /tenants/ten_1/plan-assignments", made, status=201)
    asked = ("plans", "assign", "Team", "--tenant", "ten_1", "--from", "2027-01-01", "--yes")
    assert steelyard(*asked).code == 0
    body = {"plan_id": "pln_1", "effective_from": "2027-01-01T00:00:00+01:00"}
    assert control.asked[-1].body == body
    control.gives("POST /tenants/ten_1/plan-assignments", {"assignment": None}, status=201)
    assert steelyard("plans", "assign", "none", "--tenant", "ten_1", "--yes").code == 0
    assert control.asked[-1].body["plan_id"] is None
    assert steelyard("plans", "assign", "Crew", "--tenant", "ten_1", "--yes").code == 2


def test_an_edit_keeps_the_other_limits_and_shows_first_whom_it_changes(
    steelyard: Steelyard, control: FakeControl
) -> None:
    other = {**PLANNED, "level": "tenant", "what": "concurrent", "window": "running", "amount": "8"}
    control.gives("GET /plans/pln_1", {**PLAN, "limits": [PLANNED, other]})
    change = {
        **PLANNED,
        "before": {"amount": "1", "unit": "tokens"},
        "after": {"amount": "2", "unit": "tokens"},
    }
    holder = {"tenant_id": "ten_1", "name": "Acme", "effective_from": "2026-12-01T00:00:00Z"}
    holder |= {"effective_to": None, "overrides": 1}
    effect = {"plan": {**PLAN, "limits": []}, "changes": [change], "tenants": [holder]}
    control.gives("PUT /plans/pln_1/limits", effect)
    asked = ("plans", "edit", "pln_1", "--limit", "key:tokens/minute=2", "--drop", "tenant:concurrent")
    shown = steelyard(*asked)
    assert (shown.code, control.asked[-1].path) == (6, "/plans/pln_1/limits?preview=true")
    assert "Acme" in shown.out
    assert "tokens/minute" in shown.out
    assert steelyard(*asked, "--yes").code == 0
    assert control.asked[-1].path == "/plans/pln_1/limits"
    assert control.asked[-1].body == {
        "limits": [{"level": "key", "what": "tokens", "window": "minute", "amount": "2"}]
    }
    assert steelyard("plans", "edit", "pln_1", "--drop", "key:requests/minute", "--yes").code == 2
    assert steelyard("plans", "edit", "pln_1").code == 2


TASK = {"id": "tsk_1", "name": "import", "status": "open", "budget": "2.5", "cost": "1", "lines": []}


def test_a_task_is_opened_by_name_and_opened_again_by_id(steelyard: Steelyard, control: FakeControl) -> None:
    control.gives("POST /tasks", TASK, status=201)
    result = steelyard("tasks", "open", "import", "--project", "prj_1", "--budget", "2.5")
    assert "X-Steelyard-Task: import" in result.err
    assert control.asked[-1].body == {"project_id": "prj_1", "name": "import", "budget": "2.5"}
    control.gives("PATCH /tasks/tsk_1", TASK)
    assert steelyard("tasks", "open", "tsk_1").code == 0
    assert control.asked[-1].body == {"status": "open"}


def test_a_tasks_bill_is_shown_by_model_and_it_is_closed_after_a_yes(
    steelyard: Steelyard, control: FakeControl
) -> None:
    control.gives("GET /tasks/tsk_1", {**TASK, "lines": [{"model": "qwen3-8b", "cost": "1"}]})
    assert "qwen3-8b" in steelyard("tasks", "show", "tsk_1").out
    assert steelyard("tasks", "close", "tsk_1").code == 6
    control.gives("POST /tasks/tsk_1/close", {**TASK, "status": "closed"})
    assert "closed" in steelyard("tasks", "close", "tsk_1", "--yes").out
    control.gives("PATCH /tasks/tsk_1", TASK)
    assert steelyard("tasks", "budget", "tsk_1", "5").code == 0
    assert steelyard("tasks", "budget", "tsk_1", "--none").code == 0
    assert control.asked[-1].body == {"budget": None}
    assert steelyard("tasks", "budget", "tsk_1").code == 2
    control.lists("/tasks")
    assert "X-Steelyard-Task" in steelyard("tasks", "list").err
