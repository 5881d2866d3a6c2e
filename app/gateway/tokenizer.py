"""Counts tokens at the engine's own tokenizer, for answers that were cut and whose engine reports nothing.

Rare, so plain: a request or two to `/tokenize`, bounded in time. Whatever goes wrong means "not counted".
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import msgspec

from app.core.errors import EngineError
from app.gateway.answer import Spoken, text_of
from app.gateway.dialect import Dialect
from app.gateway.model import Admission, Ask, Endpoint
from scheduler.ports import EngineClient
from scheduler.registry.model import BackendSpec
from scheduler.transport.model import Deadlines, EngineRequest, parse_target

_SHAPE_PROMPT = ("tools", "chat_template_kwargs")
"""Members besides the messages that chat templates put into the prompt."""
MAX_ANSWER_BYTES = 8 * 1024 * 1024


class Uncounted(NamedTuple):
    """What was delivered and not counted: a stream's events, or the texts of a whole answer."""

    backend: BackendSpec
    dialect: Dialect
    events: tuple[bytes, ...] = ()
    texts: tuple[str, ...] = ()


class Counted(NamedTuple):
    """Tokens of the prompt and of what was delivered."""

    input: int
    output: int


class TokenCounter:
    """Asks engines to count.   timeout_s: for all of one count together."""

    def __init__(self, client: EngineClient, *, timeout_s: float = 2.0) -> None:
        self._client = client
        self._timeout_s = timeout_s

    async def count(self, admission: Admission, uncounted: Uncounted) -> Counted | None:
        """The tokens of the request and of what was delivered, or None if the engine doesn't tell."""
        texts = uncounted.texts or texts_of(uncounted.events)
        try:
            async with asyncio.timeout(self._timeout_s):
                spoken = [await self._count_text(uncounted, text) for text in texts if text]
                prompt = await self._count_prompt(uncounted, admission.ask)
        except (EngineError, TimeoutError, ValueError, KeyError, msgspec.MsgspecError):
            return None
        return Counted(prompt, sum(spoken))

    async def _count_text(self, uncounted: Uncounted, text: str) -> int:
        if uncounted.dialect.tokenize == "llama":
            return len((await self._post(uncounted.backend, "/tokenize", asked={"content": text}))["tokens"])
        if uncounted.dialect.tokenize == "vllm":
            asked = {"model": uncounted.backend.served_model, "prompt": text, "add_special_tokens": False}
            return int((await self._post(uncounted.backend, "/tokenize", asked=asked))["count"])
        raise ValueError("this engine has no tokenizer to ask")

    async def _count_prompt(self, uncounted: Uncounted, ask: Ask) -> int:
        body: dict[str, Any] = msgspec.json.decode(ask.body)
        if ask.endpoint is Endpoint.COMPLETIONS:
            prompts = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
            if isinstance(prompts[0], int):
                return len(prompts)
            counts = [
                len(prompt) if isinstance(prompt, list) else await self._count_text(uncounted, prompt)
                for prompt in prompts
            ]
            return sum(counts)
        asked = {"messages": body["messages"]}
        asked.update((member, body[member]) for member in _SHAPE_PROMPT if body.get(member) is not None)
        if uncounted.dialect.tokenize == "llama":
            applied = await self._post(uncounted.backend, "/apply-template", asked=asked)
            return await self._count_text(uncounted, applied["prompt"])
        asked["model"] = uncounted.backend.served_model
        return int((await self._post(uncounted.backend, "/tokenize", asked=asked))["count"])

    async def _post(self, backend: BackendSpec, path: str, *, asked: dict[str, Any]) -> dict[str, Any]:
        answer = _Collected(asyncio.get_running_loop().create_future())
        request = EngineRequest(
            "POST", path, ((b"content-type", b"application/json"),), msgspec.json.encode(asked)
        )
        every = self._timeout_s
        exchange = self._client.send(
            parse_target(backend.base_url),
            request,
            deadlines=Deadlines(connect_s=every, first_byte_s=every, idle_s=every, total_s=every),
            sink=answer,
        )
        try:
            decoded: dict[str, Any] = msgspec.json.decode(await answer.body, type=dict[str, Any])
            return decoded
        finally:
            exchange.cancel()


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
            self.body.set_exception(ValueError("the engine did not count"))

    def error(self, error: EngineError) -> None:
        if not self.body.done():
            self.body.set_exception(error)


class _ChunkChoice(msgspec.Struct):
    index: int = 0
    text: str | None = None
    delta: Spoken | None = None


class _Chunk(msgspec.Struct):
    choices: list[_ChunkChoice] = []


_chunk = msgspec.json.Decoder(_Chunk).decode


def texts_of(events: tuple[bytes, ...]) -> tuple[str, ...]:
    """The text that each choice said in these events, by index. What can't be read adds nothing."""
    said: dict[int, list[str]] = {}
    for event in events:
        _, marker, data = event.partition(b"data:")
        if not marker:
            continue
        try:
            chunk = _chunk(data.strip())
        except msgspec.MsgspecError:
            continue
        for choice in chunk.choices:
            said.setdefault(choice.index, []).append((choice.text or "") + text_of(choice.delta))
    return tuple("".join(said[index]) for index in sorted(said))
