"""A model's own tokenizer and chat template, from the files that come with its weights.

`tokenizer.json` with `tokenizer_config.json` or `chat_template.jinja` beside it, or a `.gguf` of a model with
byte-level BPE. Templates run in a sandbox, with what transformers gives them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from app.cli.errors import usage_error

if TYPE_CHECKING:
    from jinja2 import Template
    from tokenizers import Tokenizer

_DEFAULT = "default"


class CannotRender(ValueError):
    """The template refuses these messages, or there is none; the text says which."""


@dataclass(frozen=True)
class ModelTokenizer:
    """Counts as the engine does.   template: the chat template's source, None if the files have none.

    specials: texts of `bos_token` and the like, which templates use.
    starts_prompts: a begin-of-text token stands before each prompt that has none.
    """

    tokenizer: Tokenizer
    template: str | None = None
    specials: Mapping[str, str] = field(default_factory=dict)
    starts_prompts: bool = False

    def count_text(self, text: str) -> int:
        """Tokens of a text within an answer."""
        return len(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def count_prompt(self, text: str) -> int:
        """Tokens of a prompt, with those that the tokenizer puts around each."""
        begins = self.starts_prompts and not text.startswith(self.specials.get("bos_token", "\0"))
        return len(self.tokenizer.encode(text, add_special_tokens=True).ids) + begins

    def count_chat(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Any] | None, now: datetime
    ) -> int:
        """Tokens of a conversation up to where the answer begins. Raises CannotRender."""
        text = self.render(messages, tools=tools, now=now)
        begins = self.starts_prompts and not text.startswith(self.specials.get("bos_token", "\0"))
        return self.count_text(text) + begins

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Any] | None, now: datetime
    ) -> str:
        """The prompt that the template makes of a conversation. Raises CannotRender."""
        from jinja2 import TemplateError

        if self.template is None:
            raise CannotRender("the tokenizer's files have no chat template")
        try:
            return _compiled(self.template, now=now).render(
                messages=messages, tools=tools, documents=None, add_generation_prompt=True, **self.specials
            )
        except (TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise CannotRender(f"the chat template refuses it: {error}") from error


def load(path: Path) -> ModelTokenizer:
    """The tokenizer of a file. Raises CommandFailed if it can't be read, or is of a kind that isn't known."""
    if not path.is_file():
        raise usage_error(f"there is no file {path}", remedy="--tokenizer tokenizer.json, or a .gguf")
    if path.suffix == ".gguf":
        from app.cli.gguf_tokenizer import read_gguf

        return read_gguf(path)
    return _read_json(path)


def _read_json(path: Path) -> ModelTokenizer:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - the library raises plain Exception for a file it can't read
        cannot_read(path, str(error))
    config: dict[str, Any] = {}
    beside = path.with_name("tokenizer_config.json")
    if beside.is_file():
        try:
            config = dict(json.loads(beside.read_bytes()))
        except (ValueError, TypeError) as error:
            cannot_read(beside, str(error))
    names = ("bos_token", "eos_token", "unk_token", "pad_token")
    specials = {name: text for name in names if (text := _text_of(config.get(name))) is not None}
    return ModelTokenizer(tokenizer, _template_of(path, config), specials)


def _template_of(path: Path, config: Mapping[str, Any]) -> str | None:
    alone = path.with_name("chat_template.jinja")
    if alone.is_file():
        return alone.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # several by name
        by_name = {each["name"]: each["template"] for each in template}
        template = by_name.get(_DEFAULT)
    return template if isinstance(template, str) else None


def _text_of(token: Any) -> str | None:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def cannot_read(path: Path, why: str) -> NoReturn:
    """Raise the failure for a tokenizer's file that is of no use."""
    raise usage_error(f"{path} is no tokenizer that can be used: {why}", remedy="--tokenizer tokenizer.json")


def _compiled(source: str, *, now: datetime) -> Template:
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> NoReturn:
        raise TemplateError(message)

    def to_json(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = now.strftime
    return environment.from_string(source)
