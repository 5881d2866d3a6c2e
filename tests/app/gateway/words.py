"""A small tokenizer in a file: a token for each word, so that a test can count by eye."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers


def save_words(
    folder: Path,
    *,
    name: str = "tokenizer.json",
    punctuation: bool = True,
    truncate: int | None = None,
    pad: int | None = None,
) -> str:
    """The path of a `tokenizer.json` that makes one token of each word, and of each mark if asked."""
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "one": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace() if punctuation else pre_tokenizers.WhitespaceSplit()
    if truncate is not None:
        tokenizer.enable_truncation(truncate)
    if pad is not None:
        tokenizer.enable_padding(length=pad)
    path = str(folder / name)
    tokenizer.save(path)
    return path
