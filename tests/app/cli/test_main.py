"""Exit codes, the form of errors, and what goes to which stream."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.app.cli.conftest import Steelyard
from tests.app.cli.fake_control import FakeControl

TENANT = {"id": "ten_1", "name": "Demo", "currency": "USD", "timezone": "UTC", "status": "active"}


@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [
        (400, "parameter_invalid", 2),
        (401, "key_unknown", 3),
        (403, "scope_missing", 3),
        (404, "not_found", 4),
        (409, "conflict", 5),
        (429, "requests_per_minute", 1),
        (500, "internal_error", 1),
        (503, "dependency_unavailable", 1),
    ],
)
def test_a_refusal_ends_with_the_exit_code_of_its_kind(
    steelyard: Steelyard, control: FakeControl, status: int, code: str, exit_code: int
) -> None:
    control.refuses("GET /tenants/ten_1", status=status, code=code, limit="10")
    result = steelyard("tenants", "show", "ten_1")
    assert result.code == exit_code
    assert result.out == ""
    assert f"error: it is {code}" in result.err
    assert "why: limit 10" in result.err
    assert f"code: {code}  request req_1" in result.err


def test_an_error_tells_people_numbers_and_hints_not_what_they_asked(
    steelyard: Steelyard, control: FakeControl
) -> None:
    facts = {"id": "req_x", "param": "id", "retryable": False, "hint": "It appears within seconds."}
    control.refuses("GET /requests/req_x", status=404, code="not_found", **facts)
    lines = steelyard("requests", "explain", "req_x").err.splitlines()
    assert lines[1] == "  why: It appears within seconds."
    assert "retryable" not in "".join(lines)


def test_a_reused_idempotency_key_has_a_remedy_of_its_own(steelyard: Steelyard, control: FakeControl) -> None:
    control.refuses("GET /tenants/ten_1", status=409, code="conflict", param="Idempotency-Key")
    assert "another --idempotency-key" in steelyard("tenants", "show", "ten_1").err
    control.refuses("GET /tenants/ten_1", status=409, code="conflict")
    assert "--idempotency-key" not in steelyard("tenants", "show", "ten_1").err


def test_with_json_an_error_has_the_shape_of_the_apis(steelyard: Steelyard, control: FakeControl) -> None:
    control.refuses("GET /tenants/ten_1", status=404, code="not_found", kind="tenant")
    result = steelyard("tenants", "show", "ten_1", "--json")
    error = json.loads(result.err)["error"]
    assert (result.code, result.out) == (4, "")
    assert (error["code"], error["request_id"], error["kind"], error["exit_code"]) == (
        "not_found",
        "req_1",
        "tenant",
        4,
    )


def test_an_answer_that_is_no_json_is_still_explained(steelyard: Steelyard, control: FakeControl) -> None:
    control.gives("GET /tenants/ten_1", "bad gateway", status=502)
    result = steelyard("tenants", "show", "ten_1")
    assert result.code == 1
    assert "answered with status 502" in result.err


def test_a_page_of_another_program_is_not_taken_for_an_answer(
    steelyard: Steelyard, control: FakeControl
) -> None:
    control.gives("GET /tenants/ten_1", b"<html>another program</html>")
    result = steelyard("tenants", "show", "ten_1")
    assert result.code == 7
    assert "what answers there is no control API" in result.err


def test_a_command_line_that_names_too_much_ends_with_2(steelyard: Steelyard, control: FakeControl) -> None:
    result = steelyard("tenants", "show", "ten_1", "--nonsense", "--json")
    error = json.loads(result.err)["error"]
    assert (result.code, error["code"], error["remedy"]) == (2, "usage", "steelyard tenants show --help")
    assert not control.asked


def test_a_noun_without_verb_shows_its_help(steelyard: Steelyard) -> None:
    result = steelyard("keys")
    assert result.code == 2
    assert "steelyard keys create ci" in result.err


def test_an_api_that_is_away_ends_with_7(steelyard: Steelyard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEELYARD_CONTROL_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("STEELYARD_TOKEN", "sya_test")
    result = steelyard("tenants", "list")
    assert result.code == 7
    assert "does not answer" in result.err


def test_the_local_stack_is_found_by_its_credentials(
    steelyard: Steelyard, control: FakeControl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("STEELYARD_CONTROL_URL")
    monkeypatch.delenv("STEELYARD_TOKEN")
    control.lists("/tenants", TENANT)
    (tmp_path / "credentials.json").write_text(json.dumps({"control_url": control.url, "token": "sya_local"}))
    assert steelyard("tenants", "list", "--data-dir", str(tmp_path)).code == 0
    assert control.asked[0].token == "Bearer sya_local"


@pytest.mark.parametrize("content", [None, "{", "[]", "{}"])
def test_without_a_stack_it_says_how_to_start_one(
    steelyard: Steelyard, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str | None
) -> None:
    monkeypatch.delenv("STEELYARD_CONTROL_URL", raising=False)
    monkeypatch.delenv("STEELYARD_TOKEN", raising=False)
    if content is not None:
        (tmp_path / "credentials.json").write_text(content)
    result = steelyard("tenants", "list", "--data-dir", str(tmp_path))
    assert result.code == 7
    assert "try: steelyard up" in result.err


def test_a_list_is_aligned_text_in_a_pipe_and_an_array_for_programs(
    steelyard: Steelyard, control: FakeControl
) -> None:
    control.lists("/tenants", TENANT)
    lines = steelyard("tenants", "list").out.splitlines()
    assert lines[0].split() == ["ID", "NAME", "CURRENCY", "TIME", "ZONE", "STATUS"]
    assert lines[1].split() == ["ten_1", "Demo", "USD", "UTC", "active"]
    assert steelyard("tenants", "list", "--json").json == [TENANT]


def test_a_page_says_how_to_go_on(steelyard: Steelyard, control: FakeControl) -> None:
    control.gives("GET /tenants", {"data": [TENANT], "has_more": True, "next": "ten_1"})
    assert "more: --after ten_1" in steelyard("tenants", "list", "--limit", "1").err
    assert control.asked[0].path == "/tenants?limit=1"


def test_the_program_starts_without_loading_http_tables_or_the_database() -> None:
    heavy = ("httpx", "rich", "sqlalchemy", "fastapi", "asyncpg", "pydantic")
    probe = f"import app.cli.main, sys; print([name for name in {heavy!r} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"
