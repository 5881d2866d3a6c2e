"""From nothing to a streamed answer, its usage row and its explanation."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from typing import Any

import pytest
from openai import AuthenticationError, NotFoundError, OpenAI

from app.core.money import format_picos, parse_picos
from tests.e2e.stack import Stack, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

PRICES = {"input": 540_000, "input_cached": 180_000, "input_cache_write": 540_000, "output": 2_160_000}
"""Micros of a dollar per million tokens, as the demo publishes them: the same numbers are picos per token."""
QUESTION: Any = [{"role": "user", "content": "Say hello."}]


def _curl(stack: Stack, body: dict[str, Any]) -> tuple[str, str]:
    """The head and the body of an answer."""
    url, key = stack.facts["gateway_url"], stack.facts["api_key"]
    command = ["curl", "-sS", "-D", "/dev/stderr", f"{url}/v1/chat/completions"]
    command += ["-H", f"Authorization: Bearer {key}", "-H", "Content-Type: application/json"]
    command += [
        "-d",
        json.dumps({"model": stack.facts["model"], "messages": QUESTION, "max_tokens": 12, **body}),
    ]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return answer.stderr, answer.stdout


def _request_id(head: str) -> str:
    names = dict(line.lower().split(": ", 1) for line in head.splitlines() if ": " in line)
    return names["x-request-id"].strip()


def _explained(stack: Stack, request_id: str) -> dict[str, Any]:
    """The explanation, as soon as the request is posted."""

    def look() -> dict[str, Any] | None:
        outcome = stack.steelyard("requests", "explain", request_id, "--json", "--data-dir", stack.data_dir)
        return json.loads(outcome.stdout) if outcome.returncode == 0 else None

    return eventually(look)


def _classes(usage: Mapping[str, Any]) -> dict[str, int]:
    """OpenAI's usage as disjoint classes."""
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    fresh = usage["prompt_tokens"] - cached
    return {
        "input": fresh,
        "input_cached": cached,
        "input_cache_write": 0,
        "output": usage["completion_tokens"],
    }


def _assert_charged(stack: Stack, request_id: str, *, classes: Mapping[str, int]) -> None:
    """The explanation shows exactly these tokens, and tokens × price as the charge."""
    explained = _explained(stack, request_id)
    amounts = {name: tokens * PRICES[name] for name, tokens in classes.items()}
    assert {name: explained["usage"][name] for name in classes} == classes
    assert {line["meter"]: line["amount"] for line in explained["charge"]["lines"]} == {
        name: format_picos(amount) for name, amount in amounts.items() if amount
    }
    assert explained["cost"] == explained["charge"]["total"] == format_picos(sum(amounts.values()))
    entries = [parse_picos(entry["amount"]) for entry in explained["ledger"]["entries"]]
    assert sum(entries) == 0


def test_a_plain_answer_is_charged_by_its_own_usage(stack: Stack) -> None:
    head, body = _curl(stack, {})
    _assert_charged(stack, _request_id(head), classes=_classes(json.loads(body)["usage"]))


def test_a_streamed_answer_is_charged_by_its_last_usage(stack: Stack) -> None:
    head, body = _curl(stack, {"stream": True, "stream_options": {"include_usage": True}})
    events = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    _assert_charged(stack, _request_id(head), classes=_classes(json.loads(events[-2])["usage"]))


def test_a_client_that_asks_for_no_usage_gets_none_and_is_charged_all_the_same(stack: Stack) -> None:
    head, body = _curl(stack, {"stream": True})
    assert '"usage"' not in body
    assert _explained(stack, _request_id(head))["usage"]["source"] == "engine"


def test_the_official_sdk_works_unchanged(stack: Stack) -> None:
    with OpenAI(base_url=f"{stack.facts['gateway_url']}/v1", api_key=stack.facts["api_key"]) as client:
        assert stack.facts["model"] in [model.id for model in client.models.list()]
        raw = client.chat.completions.with_raw_response.create(
            model=stack.facts["model"], messages=QUESTION, max_tokens=8
        )
        answer = raw.parse()
        assert answer.choices[0].message.content
        assert answer.usage is not None
        _assert_charged(stack, raw.headers["x-request-id"], classes=_classes(answer.usage.to_dict()))
        with pytest.raises(NotFoundError):
            client.chat.completions.create(model="no-such-model", messages=QUESTION)
    with OpenAI(base_url=f"{stack.facts['gateway_url']}/v1", api_key="sk-sy-wrong") as stranger:
        with pytest.raises(AuthenticationError):
            stranger.models.list()


def test_usage_is_the_sum_of_the_requests_and_what_left_the_wallet(stack: Stack) -> None:
    head, _ = _curl(stack, {})
    _explained(stack, _request_id(head))
    requests = stack.read("requests", "list", "--limit", "500")
    usage = stack.read("usage", "show")
    charged = [request for request in requests if request["cost"] is not None]
    [total] = usage["totals"]
    assert total["requests"] == len(charged)
    assert parse_picos(total["cost"]) == sum(parse_picos(request["cost"]) for request in charged)
    for name in ("input", "input_cached", "output"):
        assert total[name] == sum(request["usage"][name] for request in charged)
    posted = parse_picos(stack.read("wallets", "show")["posted"])
    assert posted == parse_picos("10") - parse_picos(total["cost"])
