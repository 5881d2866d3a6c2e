"""Reads a completion request as vLLM would, and refuses what it refuses. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from scheduler.simulator.model import Options
from scheduler.simulator.wire import error_body

DEFAULT_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Refused:
    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Asked:
    """What a valid request asks for.

    choices: answers in all, over all prompts.   tokens: of each choice, its end token included.
    times: how often each prompt is computed: once for each answer to it.
    """

    choices: int
    prompt_tokens: int
    tokens: int
    stops: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool
    times: int = 1


def read_request(body: bytes, options: Options, *, chat: bool) -> Asked | Refused:
    """What the body asks for, or vLLM's refusal of it."""
    try:
        fields = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        return _bad(
            f"1 validation error:\n  {{'type': 'json_invalid', 'msg': '{error}'}}", kind="Bad Request"
        )
    needed = "messages" if chat else "prompt"
    if not isinstance(fields, dict) or not fields.get(needed):
        return _bad(
            f"1 validation error:\n  {{'type': 'missing', 'loc': 'body.{needed}', 'msg': 'Field required'}}",
            kind="Bad Request",
            param=f"body.{needed}",
        )
    if fields.get("model", options.model) != options.model:
        message = f"The model `{fields['model']}` does not exist. Valid aliases: {options.model}."
        return Refused(404, error_body(message, kind="NotFoundError", status=404, param="model"))
    try:
        return _asked(fields, options, chat=chat)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        return _bad(f"1 validation error:\n  {{'type': 'value_error', 'msg': '{error}'}}", kind="Bad Request")


def _asked(fields: dict[str, Any], options: Options, *, chat: bool) -> Asked | Refused:
    limit = (fields.get("max_completion_tokens") if chat else None) or fields.get("max_tokens")
    if limit is not None and limit < 1:
        return _invalid(f"max_tokens must be at least 1, got {limit}.", param="max_tokens", value=limit)
    if limit is not None and limit > options.max_model_len:
        return _invalid(
            f"max_tokens={limit} cannot be greater than max_model_len={options.max_model_len}. "
            "Please request fewer output tokens.",
            param="max_tokens",
            value=limit,
        )
    prompts = [fields["messages"]] if chat else _prompts(fields["prompt"])
    prompt_tokens = sum(map(_prompt_tokens, prompts))
    if prompt_tokens >= options.max_model_len:
        return _invalid(
            f"This model's maximum context length is {options.max_model_len} tokens. However, your prompt "
            f"contains at least {prompt_tokens} input tokens, which exceeds this limit even without any "
            "output tokens. Please reduce the length of the input prompt.",
            param="input_tokens",
            value=prompt_tokens,
        )
    natural = options.tokens or limit or DEFAULT_TOKENS
    stream_options = fields.get("stream_options") or {}
    include_usage = bool(stream_options.get("include_usage"))
    times = int(fields.get("n") or 1)
    return Asked(
        choices=len(prompts) * times,
        prompt_tokens=prompt_tokens,
        tokens=min(natural, limit or natural),
        stops=limit is None or natural < limit,
        stream=bool(fields.get("stream")),
        include_usage=include_usage,
        # vLLM ignores the continuous flag alone.
        continuous_usage=include_usage and bool(stream_options.get("continuous_usage_stats")),
        times=times,
    )


def _prompts(prompt: Any) -> list[Any]:
    """One prompt for a string or a list of token ids; several for a list of those."""
    if isinstance(prompt, list) and not isinstance(prompt[0], int):
        return prompt
    return [prompt]


def _prompt_tokens(prompt: Any) -> int:
    """A fixed estimate, never above the bytes of the text plus eight a message."""
    if isinstance(prompt, str):
        return max(1, len(prompt.encode()) // 4)
    if isinstance(prompt[0], int):
        return len(prompt)
    return 2 + sum(4 + len(_content(message).encode()) // 4 for message in prompt)


def _content(message: Any) -> str:
    content = message.get("content") if isinstance(message, dict) else ""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")


def _invalid(message: str, *, param: str, value: int) -> Refused:
    return _bad(f"{message} (parameter={param}, value={value})", kind="BadRequestError", param=param)


def _bad(message: str, *, kind: str, param: str | None = None) -> Refused:
    return Refused(400, error_body(message, kind=kind, status=400, param=param))
