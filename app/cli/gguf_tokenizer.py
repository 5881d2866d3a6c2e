"""Builds a tokenizer from a GGUF file's metadata, for models with byte-level BPE.

Source of the splitting rules: llama.cpp, `llama_vocab::impl::load` and `llm_tokenizer_bpe`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli.gguf_metadata import read_metadata
from app.cli.model_tokenizer import ModelTokenizer, cannot_read

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer

_CONTROL, _USER_DEFINED = 3, 4
_CONTRACTIONS = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_WORDS = r"|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def read_gguf(path: Path) -> ModelTokenizer:
    """The tokenizer of a GGUF file. Raises CommandFailed for another kind than byte-level BPE."""
    from tokenizers import AddedToken, Tokenizer, decoders
    from tokenizers.models import BPE

    known = _metadata(path)
    kind, rule = known.get("tokenizer.ggml.model"), str(known.get("tokenizer.ggml.pre", "default"))
    if kind != "gpt2" or rule not in _SPLITTERS:
        cannot_read(path, f"its kind is {kind}, its splitting rule {rule}; take the model's tokenizer.json")
    tokens: list[str] = known["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in known["tokenizer.ggml.merges"]]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(BPE(vocabulary, merges, ignore_merges=rule in _WHOLE_WORDS))
    tokenizer.pre_tokenizer = _SPLITTERS[rule]()
    tokenizer.decoder = decoders.ByteLevel()
    types = known.get("tokenizer.ggml.token_type", [])
    whole = [token for token, kind in zip(tokens, types, strict=False) if kind in (_CONTROL, _USER_DEFINED)]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in whole])
    template = known.get("tokenizer.chat_template")
    specials = _specials(known, tokens)
    starts = bool(known.get("tokenizer.ggml.add_bos_token", False)) and "bos_token" in specials
    return ModelTokenizer(tokenizer, template, specials, starts_prompts=starts)


def _metadata(path: Path) -> dict[str, Any]:
    try:
        return read_metadata(path)
    except (ValueError, OSError) as error:
        cannot_read(path, str(error))


def _specials(known: Mapping[str, Any], tokens: list[str]) -> dict[str, str]:
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: known.get(f"tokenizer.ggml.{key}_token_id") for name, key in names.items()}
    return {name: tokens[number] for name, number in ids.items() if isinstance(number, int)}


def _plain() -> PreTokenizer:
    from tokenizers.pre_tokenizers import ByteLevel

    return ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits() -> PreTokenizer:
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    return Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)])


def _by_regex(numbers: str) -> Callable[[], PreTokenizer]:
    def made() -> PreTokenizer:
        from tokenizers import Regex
        from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

        pattern = Regex(_CONTRACTIONS + _WORDS + numbers + _REST)
        split = Split(pattern, behavior="isolated", invert=False)
        return Sequence([split, ByteLevel(add_prefix_space=False, use_regex=False)])

    return made


_SPLITTERS: dict[str, Callable[[], Any]] = {
    "default": _plain,
    "gpt-2": _plain,
    "smollm": _single_digits,
    "starcoder": _single_digits,
    "llama-bpe": _by_regex(r"|\p{N}{1,3}"),
    "qwen2": _by_regex(r"|\p{N}"),
}
"""llama.cpp's name of a rule → how it splits text before the merges."""
_WHOLE_WORDS = frozenset({"llama-bpe"})
"""Rules by which a word that is a token of its own is not merged from pieces."""
