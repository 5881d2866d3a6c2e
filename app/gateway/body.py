"""Reads a request's body: one parse of just the fields that routing, admission and metering need. Pure.

Two parsers see every body, ours and the engine's. Where a key is given twice, both take the last (JSON
leaves it open, all engines' parsers do so, msgspec too), and what we set ourselves is appended as the
last member (`upstream.py`): so the engine can't be made to see another limit than the one held for.
"""

from __future__ import annotations

from operator import attrgetter
from typing import NoReturn

import msgspec
from msgspec import UNSET, UnsetType

from app.core.errors import Rejected, RejectReason
from app.gateway.model import Ask, Endpoint, UsageWish
from app.gateway.rendered import Message, rendered_bytes
from app.gateway.structure import MAX_VALUES, count_texts, is_too_fine

MAX_CHOICES = 128
MAX_PROMPTS = 128
_MAX_MODEL_NAME = 200

_TEXT_PARTS = frozenset(("text", "input_text", "output_text", "refusal", "thinking"))
"""Parts of a message whose bytes bound their tokens; an image or a sound says little in bytes."""


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class _Part(msgspec.Struct):
    type: str = ""


class _Body(msgspec.Struct):
    model: str
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    best_of: int | None = None
    echo: bool | None = None
    messages: list[Message] | UnsetType = UNSET
    prompt: msgspec.Raw | UnsetType = UNSET
    # What a chat template prints as JSON.
    tools: msgspec.Raw | UnsetType = UNSET
    functions: msgspec.Raw | UnsetType = UNSET
    documents: msgspec.Raw | UnsetType = UNSET
    response_format: msgspec.Raw | UnsetType = UNSET
    chat_template_kwargs: msgspec.Raw | UnsetType = UNSET
    # Engine-only: a caller may not steer the engine, and never beyond what was held for.
    priority: msgspec.Raw | UnsetType = UNSET
    cache_salt: msgspec.Raw | UnsetType = UNSET
    kv_transfer_params: msgspec.Raw | UnsetType = UNSET
    ec_transfer_params: msgspec.Raw | UnsetType = UNSET
    session_id: msgspec.Raw | UnsetType = UNSET
    request_id: msgspec.Raw | UnsetType = UNSET
    rid: msgspec.Raw | UnsetType = UNSET
    vllm_xargs: msgspec.Raw | UnsetType = UNSET
    stream_interval: msgspec.Raw | UnsetType = UNSET
    data_parallel_rank: msgspec.Raw | UnsetType = UNSET
    bootstrap_host: msgspec.Raw | UnsetType = UNSET
    bootstrap_port: msgspec.Raw | UnsetType = UNSET
    bootstrap_room: msgspec.Raw | UnsetType = UNSET
    use_beam_search: msgspec.Raw | UnsetType = UNSET
    n_predict: msgspec.Raw | UnsetType = UNSET
    n_cmpl: msgspec.Raw | UnsetType = UNSET
    id_slot: msgspec.Raw | UnsetType = UNSET
    cache_prompt: msgspec.Raw | UnsetType = UNSET
    timings_per_token: msgspec.Raw | UnsetType = UNSET
    return_progress: msgspec.Raw | UnsetType = UNSET
    response_fields: msgspec.Raw | UnsetType = UNSET
    chat_template: msgspec.Raw | UnsetType = UNSET
    prompt_embeds: msgspec.Raw | UnsetType = UNSET
    input_embeds: msgspec.Raw | UnsetType = UNSET
    logits_processors: msgspec.Raw | UnsetType = UNSET
    custom_logit_processor: msgspec.Raw | UnsetType = UNSET
    session_params: msgspec.Raw | UnsetType = UNSET
    extra_key: msgspec.Raw | UnsetType = UNSET
    lora: msgspec.Raw | UnsetType = UNSET
    lora_path: msgspec.Raw | UnsetType = UNSET


_LIST = ord("[")
_decoder = msgspec.json.Decoder(_Body)
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_parts = msgspec.json.Decoder(list[_Part]).decode
ENGINE_ONLY = tuple(
    _Body.__struct_fields__[_Body.__struct_fields__.index("priority"):]
)  # fmt: skip
_rendered = attrgetter("tools", "functions", "documents", "response_format", "chat_template_kwargs")
_engine_only = attrgetter(*ENGINE_ONLY)
_ABSENT = (UNSET,) * len(ENGINE_ONLY)


def parse(body: bytes, endpoint: Endpoint) -> Ask:
    """What a body asks. Raises Rejected (400) naming the parameter that is wrong; never anything else."""
    try:
        return _read(body, endpoint)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        param = path.removeprefix(".").removesuffix("`") if path.startswith(".") else None
        reason = RejectReason.PARAMETER_INVALID if param else RejectReason.BODY_INVALID
        raise Rejected(reason, f"The body is not valid: {message}.", status=400, param=param) from None
    except RecursionError:
        _invalid("The body is nested too deeply.")
    except (msgspec.DecodeError, UnicodeDecodeError):
        _invalid("The body is not valid JSON in UTF-8.")


def _read(body: bytes, endpoint: Endpoint) -> Ask:
    if not body.isascii():
        body.decode("utf-8")  # members that are skipped are not checked by the parser
    if is_too_fine(body):
        _invalid(f"The body consists of more than {MAX_VALUES} parts.")
    asked = _decoder.decode(body)
    prompts = _count_prompts(asked, endpoint)
    rendered = _rendered_bytes(asked)
    if _engine_only(asked) != _ABSENT:
        body = _without_engine_only(body)
    return Ask(
        endpoint=endpoint,
        body=body,
        model=_model_name(asked.model),
        streamed=asked.stream is True,
        usage_wish=_usage_wish(asked),
        max_tokens=_max_tokens(asked),
        gave_max_completion_tokens=asked.max_completion_tokens is not None,
        choices=_choices(asked, prompts),
        prompts=prompts,
        is_text=rendered is not None and (asked.messages is UNSET or all(map(_is_text, asked.messages))),
        rendered_bytes=rendered or 0,
        echo=asked.echo is True,
    )


def _invalid(message: str) -> NoReturn:
    raise Rejected(RejectReason.BODY_INVALID, message, status=400)


def _wrong(param: str, message: str) -> NoReturn:
    raise Rejected(RejectReason.PARAMETER_INVALID, message, status=400, param=param)


def _model_name(name: str) -> str:
    if not 0 < len(name) <= _MAX_MODEL_NAME:
        _wrong("model", f"`model` has 1 to {_MAX_MODEL_NAME} characters.")
    return name


def _usage_wish(asked: _Body) -> UsageWish:
    options = asked.stream_options
    if options is None:
        return UsageWish.NONE
    if asked.stream is not True:
        _wrong("stream_options", "`stream_options` is allowed only when `stream` is true.")
    if not options.include_usage:
        return UsageWish.NONE
    return UsageWish.EVERY if options.continuous_usage_stats else UsageWish.FINAL


def _max_tokens(asked: _Body) -> int | None:
    for param in ("max_completion_tokens", "max_tokens"):
        value: int | None = getattr(asked, param)
        if value is not None:
            if value < 1:
                _wrong(param, f"`{param}` is at least 1.")
            return value
    return None


def _choices(asked: _Body, prompts: int) -> int:
    """Answers per prompt: the engine makes `best_of` of them, if that is more than `n`."""
    for param in ("n", "best_of"):
        value: int | None = getattr(asked, param)
        if value is not None and not 1 <= value <= MAX_CHOICES:
            _wrong(param, f"`{param}` lies between 1 and {MAX_CHOICES}.")
    choices = max(asked.n or 1, asked.best_of or 1)
    if choices * prompts > MAX_CHOICES * 8:
        _wrong("n", "The request asks for too many answers at once.")
    return choices


def _count_prompts(asked: _Body, endpoint: Endpoint) -> int:
    if endpoint is Endpoint.CHAT:
        if not asked.messages:
            _wrong("messages", "`messages` is required and is not empty.")
        return 1
    if asked.prompt is UNSET:
        _wrong("prompt", "`prompt` is required.")
    raw = bytes(asked.prompt).lstrip()
    if raw[:1] != b"[":
        if raw[:1] != b'"':
            _wrong("prompt", "`prompt` is a text or a list.")
        return 1
    count = count_texts(raw, most=MAX_PROMPTS)
    if count == 0:
        _wrong("prompt", "`prompt` is empty.")
    if count > MAX_PROMPTS:
        _wrong("prompt", f"`prompt` has at most {MAX_PROMPTS} entries.")
    return count


def _rendered_bytes(asked: _Body) -> int | None:
    values = [value for value in _rendered(asked) if value is not UNSET]
    results = 0
    for message in asked.messages or ():
        if message.renders:
            values += message.rendered()
            results += 1
    return rendered_bytes(values, results=results) if values else 0


def _is_text(message: Message) -> bool:
    content = message.content
    return memoryview(content)[0] != _LIST or all(part.type in _TEXT_PARTS for part in _parts(content))


def _without_engine_only(body: bytes) -> bytes:
    """The body without them, however often they were given; the others' values are the bytes that came."""
    members = _members(body)
    for field in ENGINE_ONLY:
        members.pop(field, None)
    return msgspec.json.encode(members)
