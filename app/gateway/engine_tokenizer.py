"""Asks an engine to count tokens: `/tokenize`, and of llama-server `/apply-template` before it.

It knows the model's template, so the prompt's count is exact. Rare, so plain: a request or two, one after
another. SGLang before 2026 takes no messages there; then their texts are counted, without the template.
Source: the recorded answers of vLLM 0.32; SGLang's `serving_tokenize.py`; llama.cpp's server README.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from app.core.errors import EngineError
from app.gateway.prompt import Prompt
from scheduler.ports import EngineClient
from scheduler.registry.model import BackendSpec
from scheduler.transport.model import Deadlines, EngineRequest, parse_target

MAX_ANSWER_BYTES = 8 * 1024 * 1024


class NotCounted(Exception):
    """Nobody could count; says why in a word."""


class EngineTokenizer:
    """One engine's tokenizer.   way: `vllm`, `sglang` or `llama`.   timeout_s: of each question."""

    def __init__(self, client: EngineClient, backend: BackendSpec, *, way: str, timeout_s: float) -> None:
        self._client = client
        self._backend = backend
        self._way = way
        self._timeout_s = timeout_s

    async def count_text(self, text: str, *, special: bool = False) -> int:
        """Tokens of a text.   special: with those that begin a prompt. Raises NotCounted."""
        if self._way == "llama":
            asked: dict[str, Any] = {"content": text, "add_special": special}
            return _length(await self._post("/tokenize", asked), "tokens")
        asked = {"model": self._backend.served_model, "prompt": text, "add_special_tokens": special}
        return _number(await self._post("/tokenize", asked), "count")

    async def count_prompt(self, prompt: Prompt) -> tuple[int, tuple[str, ...]]:
        """Tokens of a request's prompt as the engine sees it, and flags. Raises NotCounted."""
        if prompt.messages is None:
            counts = [await self.count_text(text, special=True) for text in prompt.texts]
            return sum(counts) + prompt.tokens, ()
        asked = prompt.shape()
        if self._way == "llama":
            applied = (await self._post("/apply-template", asked)).get("prompt")
            if not isinstance(applied, str):
                raise NotCounted("unreadable")
            return await self.count_text(applied, special=True), ()
        try:
            answer = await self._post("/tokenize", {**asked, "model": self._backend.served_model})
            return _number(answer, "count"), ()
        except NotCounted:
            if self._way != "sglang":
                raise
        counts = [await self.count_text(text) for text in prompt.texts]
        return sum(counts), ("template_not_counted",)

    async def _post(self, path: str, asked: dict[str, Any]) -> dict[str, Any]:
        answer = _Collected(asyncio.get_running_loop().create_future())
        head = ((b"content-type", b"application/json"),)
        every = self._timeout_s
        exchange = self._client.send(
            parse_target(self._backend.base_url),
            EngineRequest("POST", path, head, msgspec.json.encode(asked)),
            deadlines=Deadlines(connect_s=every, first_byte_s=every, idle_s=every, total_s=every),
            sink=answer,
        )
        try:
            decoded: dict[str, Any] = msgspec.json.decode(await answer.body, type=dict[str, Any])
        except EngineError as error:
            raise NotCounted("unreachable") from error
        except msgspec.MsgspecError as error:
            raise NotCounted("unreadable") from error
        finally:
            exchange.cancel()
        return decoded


class _Collected:
    """A sink that keeps a small answer whole."""

    def __init__(self, body: asyncio.Future[bytes]) -> None:
        self.body = body
        self._status = 0
        self._pieces: list[bytes] = []
        self._size = 0

    def head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self._status = status

    def piece(self, data: bytes) -> None:
        self._size += len(data)
        if self._size <= MAX_ANSWER_BYTES:
            self._pieces.append(data)

    def end(self) -> None:
        if self.body.done():
            return
        if self._status == 200 and self._size <= MAX_ANSWER_BYTES:
            self.body.set_result(b"".join(self._pieces))
        else:
            self.body.set_exception(NotCounted("refused"))

    def error(self, error: EngineError) -> None:
        if not self.body.done():
            self.body.set_exception(error)


def _number(answer: dict[str, Any], member: str) -> int:
    count = answer.get(member)
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise NotCounted("unreadable")
    return count


def _length(answer: dict[str, Any], member: str) -> int:
    listed = answer.get(member)
    if not isinstance(listed, list):
        raise NotCounted("unreadable")
    return len(listed)
