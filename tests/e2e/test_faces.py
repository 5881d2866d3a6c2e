"""The console and the verbs of a running stack."""

from __future__ import annotations

import json

import httpx
import pytest

from tests.app.console.forms import hidden_fields
from tests.e2e.stack import Stack, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


def test_the_printed_login_opens_the_console(stack: Stack) -> None:
    with httpx.Client(base_url=stack.facts["console_url"], follow_redirects=True) as visitor:
        login = visitor.get("/")
        assert login.url.path == "/console/login"
        form = hidden_fields(login.text)
        form |= {"email": stack.facts["admin_email"], "password": stack.facts["admin_password"]}
        home = visitor.post("/console/login", data=form)
        assert (home.status_code, home.url.path) == (200, "/console/")
        assert f"curl {stack.facts['gateway_url']}/v1/chat/completions" in home.text
        assert stack.facts["model"] in home.text
        assert visitor.get("/console/requests").status_code == 200


def test_status_names_every_service_as_up_did(stack: Stack) -> None:
    status = stack.read("status")
    assert status["running"] is True
    assert [s["name"] for s in status["services"]] == [s["name"] for s in stack.facts["services"]]
    assert {s["state"] for s in status["services"]} <= {"ready", "done"}


def test_doctor_finds_nothing_wrong_with_a_stack_that_runs(stack: Stack) -> None:
    outcome = stack.steelyard("doctor", "--json", "--data-dir", stack.data_dir)
    findings = json.loads(outcome.stdout)["findings"]
    assert not [finding for finding in findings if not finding["ok"]]
    assert outcome.returncode == 0


def test_logs_are_json_lines_without_a_key(stack: Stack) -> None:
    outcome = stack.steelyard("logs", "gateway-1", "--data-dir", stack.data_dir)
    assert outcome.returncode == 0
    assert json.loads(outcome.stdout.splitlines()[0])["process"] == "gateway"
    every = stack.steelyard("logs", "--lines", "10000", "--data-dir", stack.data_dir)
    for secret in (stack.facts["api_key"], stack.facts["admin_password"]):
        assert secret not in every.stdout


def test_a_second_stack_on_the_same_ports_is_refused_with_the_flag_that_helps(stack: Stack) -> None:
    port = stack.facts["gateway_url"].rpartition(":")[2]
    outcome = stack.steelyard("up", "--ephemeral", "--detach", "--port", port)
    assert (outcome.returncode, outcome.stdout.count("sk-sy-")) == (1, 0)
    assert port in outcome.stderr
    assert "--port" in outcome.stderr


def test_a_key_works_when_made_and_is_refused_when_revoked(stack: Stack) -> None:
    made = stack.read("keys", "create", "short-lived")
    models = f"{stack.facts['gateway_url']}/v1/models"
    headers = {"authorization": f"Bearer {made['key']}"}
    eventually(lambda: httpx.get(models, headers=headers).status_code == 200)
    stack.read("keys", "revoke", made["id"], "--yes")
    eventually(lambda: httpx.get(models, headers=headers).status_code == 401)
