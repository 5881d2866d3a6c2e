"""A model's own tokenizer and chat template: counts texts, prompts and conversations as its engine does.

Templates run in a sandbox, with what transformers gives them.
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
