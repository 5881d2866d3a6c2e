"""A tenant's own texts, counted again: what differs is found, what can't be counted is said."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.cli.errors import CommandFailed
from app.cli.gguf_metadata import read_metadata
from app.cli.model_tokenizer import CannotRender, ModelTokenizer
from app.cli.tokenizer_file import load
from billing.chain.lines import event_line
from billing.metering.model import Outcome, Usage, UsageSource
from tests.app.cli.conftest import Steelyard
from tests.app.cli.small_tokenizer import END, START, write_gguf, write_json
from tests.billing.chain.makes import event_row, seal

NOW = datetime(2026, 11, 30, tzinfo=UTC)
ASKED = [{"role": "user", "content": "What is the capital of France?"}]
SAID = "The capital of France is Paris."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("model")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> ModelTokenizer:
    return load(write_json(folder))


@pytest.fixture(scope="module")
def gguf(tokenizer: ModelTokenizer, folder: Path) -> ModelTokenizer:
    return load(write_gguf(folder / "tokenizer.json"))


def chat_tokens(tokenizer: ModelTokenizer, messages: list[dict[str, Any]] | None = None) -> int:
    return tokenizer.count_chat(messages or ASKED, tools=None, now=NOW)


class Desk:
    """Events and texts in files, and the command that compares them."""

    def __init__(self, steelyard: Steelyard, tokenizer: Path, place: Path) -> None:
        self._steelyard = steelyard
        self._tokenizer = tokenizer
        self._place = place
        self._rows: list[dict[str, Any]] = []
        self._texts: list[dict[str, Any]] = []

    def event(self, usage: Usage, texts: dict[str, Any] | None, **facts: Any) -> str:
        row = event_row(len(self._rows), usage, at=NOW, **facts)
        self._rows.append(row)
        if texts is not None:
            self._texts.append({"request_id": row["request_id"], **texts})
        return str(row["request_id"])

    def verify(self) -> dict[str, Any]:
        events, texts = self._place / "events.ndjson", self._place / "texts.ndjson"
        events.write_bytes(b"\n".join(seal((event_line(row), NOW.date()) for row in self._rows)) + b"\n")
        texts.write_text("\n".join(map(json.dumps, self._texts[::-1])) + "\n")
        files = ("--texts", str(texts), "--tokenizer", str(self._tokenizer))
        shown = self._steelyard("verify", "events", str(events), *files)
        told = dict(self._steelyard("verify", "events", str(events), *files, "--json").json)
        assert shown.code == (0 if told["right"] else 1)
        assert all(row["rule"] in shown.out for row in told["recount"]["not_recountable"])
        assert all(finding["what"] in shown.out for finding in told["findings"])
        return told


@pytest.fixture
def desk(steelyard: Steelyard, tokenizer: ModelTokenizer, folder: Path, tmp_path: Path) -> Desk:
    return Desk(steelyard, folder / "tokenizer.json", tmp_path)


def test_what_was_metered_right_is_equal_and_one_token_more_is_found(
    desk: Desk, tokenizer: ModelTokenizer
) -> None:
    given, made = chat_tokens(tokenizer), tokenizer.count_text(SAID) + 1
    chat = {"messages": ASKED, "answer": SAID}
    desk.event(Usage(given, 0, 0, made), chat)
    desk.event(Usage(given - 3, 2, 1, made), chat)
    desk.event(Usage(5, 0, 0, 5), None)
    prompts = {
        "prompt": ["The parts are", [1, 2, 3]],
        "answers": [" the", {"text": " a", "finish_reason": "stop"}],
    }
    prompts["answers"][0] = {"text": " the", "finish_reason": "length"}  # type: ignore[call-overload]
    spent = (
        tokenizer.count_prompt("The parts are") + 3,
        tokenizer.count_text(" the") + tokenizer.count_text(" a") + 1,
    )
    desk.event(Usage(spent[0], 0, 0, spent[1]), prompts, prompts=2)
    told = desk.verify()
    assert (told["right"], told["recount"]["requests"], told["recount"]["sides_equal"]) == (True, 3, 6)
    more_in = desk.event(Usage(given + 1, 0, 0, made), chat)
    more_out = desk.event(Usage(given, 0, 0, made + 1), chat)
    told = desk.verify()
    assert not told["right"]
    assert [(finding["id"], finding["what"]) for finding in told["findings"]] == [
        (more_in, f"input: {given + 1} tokens were metered, the texts have {given}"),
        (more_out, f"output: {made + 1} tokens were metered, the texts have {made}"),
    ]
    assert {finding["flaw"] for finding in told["findings"]} == {"recount"}


@pytest.mark.parametrize(
    ("texts", "facts", "rules"),
    [
        ({"stop": ["Paris"], "answer": SAID}, {}, {"output": "a stop string was cut off"}),
        ({"answers": [{"text": "", "tool_calls": [{}]}]}, {}, {"output": "tool calls are written"}),
        ({"answers": [{"text": SAID, "reasoning": "hm"}]}, {}, {"output": "reasoning was cut out"}),
        ({"answers": [SAID, SAID]}, {"choices": 2}, {"output": "how each answer ended"}),
        ({"answers": [SAID]}, {"choices": 2}, {"output": "1 answers were kept, the request has 2"}),
        ({"answer": SAID, "response_format": {"type": "json_object"}}, {}, {"output": "a grammar makes"}),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            {},
            {"input": "more than text"},
        ),
        ({"messages": ASKED, "tools": [{"type": "function"}]}, {}, {"input": "tools into the prompt"}),
        ({"messages": [{"role": "user"}], "answer": SAID}, {}, {}),
        ({"answer": SAID}, {}, {"input": "neither messages nor a prompt"}),
        (
            {"answer": SAID},
            {"outcome": Outcome.CLIENT_CANCELLED},
            {"input": "it ended as", "output": "it ended as"},
        ),
        ({"answer": SAID}, {"source": UsageSource.UNKNOWN}, {"input": "nobody", "output": "nobody"}),
        ({"answer": SAID}, {"source": UsageSource.TOKENIZER}, {"input": "estimated", "output": "estimated"}),
    ],
)
def test_what_cannot_be_counted_exactly_is_said_with_its_rule(
    desk: Desk, texts: dict[str, Any], facts: dict[str, Any], rules: dict[str, str]
) -> None:
    desk.event(Usage(999, 0, 0, 999), texts, **facts)
    told = desk.verify()["recount"]
    found = {row["side"]: row["rule"] for row in told["not_recountable"]}
    for side, words in rules.items():
        assert words in found[side]
    assert told["sides_equal"] == 0
    assert told["sides_different"] + told["sides_not_recountable"] == 2


def test_a_text_without_an_event_is_named(desk: Desk, tokenizer: ModelTokenizer) -> None:
    desk.event(Usage(5, 0, 0, 5), None)
    desk._texts.append({"request_id": "req_unmetered", "prompt": "a", "answer": "b"})
    assert desk.verify()["recount"]["texts_without_event"] == ["req_unmetered"]


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_a_gguf_file_counts_as_the_json_file_does(
    tokenizer: ModelTokenizer, gguf: ModelTokenizer, text: str
) -> None:
    assert gguf.count_text(text) == tokenizer.count_text(text)
    messages = [{"role": "user", "content": text}]
    assert chat_tokens(gguf, messages) == chat_tokens(tokenizer, messages)
    special = START + text + END
    assert gguf.count_text(special) == tokenizer.count_text(special)


def test_a_model_that_begins_texts_with_a_token_counts_it_once(tmp_path: Path) -> None:
    plain = load(write_json(tmp_path))
    beginning = load(write_gguf(tmp_path / "tokenizer.json", bos=True))
    assert beginning.count_prompt("a") == plain.count_prompt("a") + 1
    assert beginning.count_prompt(START + "a") == plain.count_prompt(START + "a")
    assert chat_tokens(beginning) == chat_tokens(plain)  # the template begins with it


def test_a_template_runs_in_a_sandbox_and_knows_the_day(tmp_path: Path) -> None:
    dated = load(write_json(tmp_path, template="{{ strftime_now('%d %b %Y') }}{{ bos_token }}"))
    assert dated.render(ASKED, tools=None, now=NOW) == "30 Nov 2026" + START
    for template in (
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception('roles must alternate') }}",
        "{{ 1 / 0 }}",
        None,
    ):
        refusing = load(write_json(tmp_path, template=template))
        with pytest.raises(CannotRender):
            refusing.render(ASKED, tools=None, now=NOW)


@pytest.mark.parametrize("facts", [{"kind": "llama"}, {"rule": "unheard-of"}])
def test_a_gguf_of_another_kind_is_refused_with_a_way_out(tmp_path: Path, facts: dict[str, str]) -> None:
    path = write_gguf(write_json(tmp_path), **facts)  # type: ignore[arg-type]
    with pytest.raises(CommandFailed, match=r"tokenizer\.json"):
        load(path)


def test_a_damaged_or_missing_tokenizer_is_a_usage_error(tmp_path: Path) -> None:
    whole = write_gguf(write_json(tmp_path)).read_bytes()
    broken = tmp_path / "broken.gguf"
    for length in (0, 3, 23, 24, 40, len(whole) // 2, len(whole) - 40):
        broken.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="it "):
            read_metadata(broken)
        with pytest.raises(CommandFailed):
            load(broken)
    (tmp_path / "bad.json").write_text("{}")
    for name in ("bad.json", "nowhere.json"):
        with pytest.raises(CommandFailed):
            load(tmp_path / name)


@pytest.mark.parametrize("line", ["{", '{"request": 1}', '{"request_id": "a"}\n{"request_id": "a"}'])
def test_texts_that_cannot_be_read_are_a_usage_error(
    steelyard: Steelyard, folder: Path, tmp_path: Path, line: str
) -> None:
    write_json(tmp_path)
    (tmp_path / "texts").write_text(line)
    (tmp_path / "events").write_text("")
    files = ("--texts", str(tmp_path / "texts"), "--tokenizer", str(tmp_path / "tokenizer.json"))
    assert steelyard("verify", "events", str(tmp_path / "events"), *files).code == 2
