"""A request's prompt as far as a tokenizer may count it: its messages and texts. Pure.

Read a second time from the body, for the rare request that has to be counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from app.gateway.model import Ask, Endpoint

_SHAPING = ("tools", "chat_template_kwargs")
"""Members besides the messages that chat templates put into the prompt."""
_SPOKEN = ("reasoning_content", "refusal")


class Prompt(msgspec.Struct, frozen=True):
    """What a model was given.

    texts: of all messages, or of all prompts.   tokens: given as tokens, so counted already.
    messages: of a chat, as they came; else None.   shaping: what else the template prints.
    """

    texts: tuple[str, ...]
    tokens: int = 0
    messages: list[Any] | None = None
    shaping: dict[str, Any] = {}

    def shape(self) -> dict[str, Any]:
        """The members from which an engine makes the prompt of a chat."""
        return {"messages": self.messages, **self.shaping}


def read_prompt(ask: Ask) -> Prompt:
    """The prompt of a request; its body has been parsed before, so it is valid JSON of the right shape."""
    body: dict[str, Any] = msgspec.json.decode(ask.body)
    if ask.endpoint is Endpoint.CHAT:
        shaping = {member: body[member] for member in _SHAPING if body.get(member) is not None}
        texts = tuple(text for message in body["messages"] for text in _texts(message) if text)
        return Prompt(texts, messages=body["messages"], shaping=shaping)
    given = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
    if given and isinstance(given[0], int):
        return Prompt((), tokens=len(given))
    texts = tuple(one for one in given if isinstance(one, str))
    return Prompt(texts, tokens=sum(len(one) for one in given if isinstance(one, list)))


def _texts(message: dict[str, Any]) -> Iterator[str]:
    """All that a message says: its content or the texts of its parts, and its calls of tools."""
    content = message.get("content")
    if isinstance(content, str):
        yield content
    for part in content if isinstance(content, list) else ():
        text = part.get("text") if isinstance(part, dict) else part
        if isinstance(text, str):
            yield text
    yield from (message[member] for member in _SPOKEN if isinstance(message.get(member), str))
    calls = message.get("tool_calls")
    for call in (*(calls if isinstance(calls, list) else ()), {"function": message.get("function_call")}):
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            told = (function.get("name"), function.get("arguments"))
            yield from (text for text in told if isinstance(text, str))
