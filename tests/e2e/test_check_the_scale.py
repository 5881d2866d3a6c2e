"""A tenant downloads its events, checks them off-line, and counts its texts with the model's own file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from app.stack.data_dir import DataDir, cache_folder
from app.stack.demo_model import expanded_path
from tests.e2e.stack import Stack, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

CHATS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}],
    [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "Zähle: 1, 22, 333 – 称?"}],
    [
        {"role": "user", "content": "Say  hello\n\n\twith spaces "},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Again, in upper case; it's don't-care 🙂"},
    ],
]
PROMPTS = ["The capital of France is", "def main():\n    return 1234567"]


class Kept:
    """What a tenant keeps of its requests: their ids and texts."""

    def __init__(self, stack: Stack) -> None:
        self._model = stack.facts["model"]
        self._client = OpenAI(base_url=f"{stack.facts['gateway_url']}/v1", api_key=stack.facts["api_key"])
        self.texts: list[dict[str, Any]] = []

    def chat(self, messages: list[Any], *, max_tokens: int, stream: bool) -> None:
        asked: dict[str, Any] = {"model": self._model, "messages": messages, "max_tokens": max_tokens}
        raw = self._client.chat.completions.with_raw_response.create(**asked, temperature=0, stream=stream)
        answered = raw.parse()
        if stream:
            said = "".join(chunk.choices[0].delta.content or "" for chunk in answered if chunk.choices)
        else:
            said = answered.choices[0].message.content or ""
        self._keep(raw.headers["x-request-id"], messages=messages, answer=said)

    def complete(self, prompt: str, *, max_tokens: int) -> None:
        raw = self._client.completions.with_raw_response.create(
            model=self._model, prompt=prompt, max_tokens=max_tokens, temperature=0
        )
        self._keep(raw.headers["x-request-id"], prompt=prompt, answer=raw.parse().choices[0].text)

    def write(self, path: Path) -> Path:
        path.write_text("".join(json.dumps(each) + "\n" for each in self.texts), encoding="utf-8")
        return path

    def _keep(self, request_id: str, **texts: Any) -> None:
        self.texts.append({"request_id": request_id, **texts})


def _download(stack: Stack, path: Path, *, request_ids: set[str]) -> Path:
    """The tenant's events in a file, as soon as these requests are sealed."""

    def look() -> Path | None:
        answer = stack.steelyard("usage", "events", "--data-dir", stack.data_dir)
        assert answer.returncode == 0, answer.stderr
        path.write_text(answer.stdout, encoding="utf-8")
        return path if all(request_id in answer.stdout for request_id in request_ids) else None

    return eventually(look)


def test_the_engines_count_is_the_count_of_the_models_own_tokenizer(stack: Stack, tmp_path: Path) -> None:
    kept = Kept(stack)
    for stream in (False, True):
        for messages in CHATS:
            kept.chat(messages, max_tokens=24, stream=stream)
    for prompt in PROMPTS:
        kept.complete(prompt, max_tokens=8)
    events = _download(
        stack, tmp_path / "events.ndjson", request_ids={each["request_id"] for each in kept.texts}
    )
    heads = tmp_path / "heads.json"
    heads.write_text(json.dumps(stack.read("usage", "heads")), encoding="utf-8")
    model = expanded_path(cache_folder(DataDir(Path(stack.data_dir))))
    texts = kept.write(tmp_path / "texts.ndjson")
    files = ("--heads", str(heads), "--texts", str(texts), "--tokenizer", str(model))
    told = stack.steelyard.read("verify", "events", str(events), *files)
    assert (told["right"], told["findings"]) == (True, []), told
    again = told["recount"]
    assert (again["requests"], again["sides_equal"], again["not_recountable"]) == (8, 16, [])
    kept.texts[0]["answer"] += " Yes"
    kept.write(texts)
    outcome = stack.steelyard("verify", "events", str(events), *files, "--json")
    assert outcome.returncode == 1
    (found,) = json.loads(outcome.stdout)["findings"]
    assert (found["id"], found["flaw"]) == (kept.texts[0]["request_id"], "recount")
