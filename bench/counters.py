"""An engine's own count of the tokens that it made, from its metrics page."""

from __future__ import annotations

import asyncio
import re
import time

import httpx

_GENERATED = (
    "vllm:generation_tokens_total",
    "llamacpp:tokens_predicted_total",
    "sglang:generation_tokens_total",
)
_BUSY = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "llamacpp:requests_processing",
    "llamacpp:requests_deferred",
    "sglang:num_running_reqs",
)
_POLL_S = 0.01
_QUIET_S = 0.3
_PATIENCE_S = 60.0


class EngineCounter:
    """Reads one engine's counters.   url: the engine's own address."""

    def __init__(self, url: str) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=30)

    async def close(self) -> None:
        await self._http.aclose()

    async def generated(self) -> int:
        """The tokens it has made since its start. Raises LookupError if it doesn't tell."""
        found = await self._sum(_GENERATED)
        if found is None:
            raise LookupError(f"the engine's metrics have none of {', '.join(_GENERATED)}")
        return int(found)

    async def idle_after_s(self) -> float:
        """Wait until nothing runs and the count stands still; returns when it was first seen idle."""
        began = time.perf_counter()
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                while await self._sum(_BUSY):
                    await asyncio.sleep(_POLL_S)
                idle = time.perf_counter() - began
                before = await self.generated()
                await asyncio.sleep(_QUIET_S)
                if before == await self.generated() and not await self._sum(_BUSY):
                    return idle

    async def _sum(self, names: tuple[str, ...]) -> float | None:
        """The sum of the samples of those names, None if the page has none of them."""
        page = (await self._http.get("/metrics")).text
        pattern = rf"^(?:{'|'.join(map(re.escape, names))})(?:{{[^}}]*}})?\s+(\S+)"
        found = re.findall(pattern, page, flags=re.MULTILINE)
        return sum(map(float, found)) if found else None
