"""Counts a request's input exactly before it is admitted, by the engine that would serve it.

Only where that is exact: the engine's own template and tokenizer, and nothing in the body that shapes the
prompt in a way that they are not told of. It costs the engine a round trip, so it is for the rare request
whose free upper bound does not fit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from app.catalog.snapshot import Model
from app.core.ids import DeploymentId
from app.gateway.dialect import dialect_of
from app.gateway.engine_tokenizer import EngineTokenizer, NotCounted
from app.gateway.model import Ask
from app.gateway.prompt import read_prompt
from scheduler.ports import EngineClient
from scheduler.registry.model import BackendSpec

_HARMLESS = frozenset(
    (
        *(
            "model",
            "messages",
            "prompt",
            "tools",
            "chat_template_kwargs",
            "max_tokens",
            "max_completion_tokens",
        ),
        *(
            "stream",
            "stream_options",
            "n",
            "best_of",
            "echo",
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "stop",
        ),
        *("seed", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "logprobs"),
        *("top_logprobs", "user", "metadata", "store", "service_tier", "parallel_tool_calls"),
    )
)
"""Members of a body that the count knows of, or that don't shape the prompt."""
MAX_AT_ONCE = 16
_Members = msgspec.json.Decoder(dict[str, msgspec.Raw])


class ExactCounter:
    """Counts at engines.   backend_of: one that lives, of a deployment.   counted, failed: how it went."""

    def __init__(
        self,
        client: EngineClient,
        *,
        backend_of: Callable[[DeploymentId], BackendSpec | None],
        timeout_s: float = 2.0,
    ) -> None:
        self.counted = self.failed = 0
        self._client = client
        self._backend_of = backend_of
        self._timeout_s = timeout_s
        self._slots = asyncio.Semaphore(MAX_AT_ONCE)

    async def count(self, ask: Ask, model: Model) -> int | None:
        """The tokens of the input as the engine would see it; None if nobody can tell exactly."""
        if not ask.is_text or not _HARMLESS.issuperset(_Members.decode(ask.body)):
            return None
        backend = self._backend_of(model.deployment_id)
        way = None if backend is None else dialect_of(backend.engine).tokenize
        if backend is None or way is None:
            return None
        tokenizer = EngineTokenizer(self._client, backend, way=way, timeout_s=self._timeout_s)
        try:
            async with asyncio.timeout(self._timeout_s), self._slots:
                tokens, flags = await tokenizer.count_prompt(read_prompt(ask))
        except (NotCounted, TimeoutError, ValueError, KeyError, RecursionError):
            self.failed += 1
            return None
        if flags:  # such as: without the template
            self.failed += 1
            return None
        self.counted += 1
        return max(tokens, ask.prompts)
