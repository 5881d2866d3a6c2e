"""Reads a model's tokenizer from the files that come with its weights.

`tokenizer.json` with `tokenizer_config.json` or `chat_template.jinja` beside it, or a `.gguf` of a model with
byte-level BPE.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.cli.errors import usage_error
from app.cli.model_tokenizer import ModelTokenizer, cannot_read

_DEFAULT = "default"


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
