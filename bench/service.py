"""A whole stack on a throw-away folder, for one benchmark: its gateway, its engine, its explanations."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from app.stack.addresses import Addresses, taken
from bench import hangup, load

_START_S = 300.0
_POSTED_S = 30.0
_ONE_GATEWAY = 1


@dataclass(frozen=True)
class Service:
    """A running stack.   engine_url: the engine behind it.   control: the control API, as an operator."""

    host: str
    port: int
    key: str
    model: str
    engine_url: str
    control: httpx.AsyncClient

    async def ask(self, body: dict[str, Any], *, chunks: int | None = None) -> hangup.Seen:
        """What a client sees of a streamed answer that it leaves after so many chunks."""
        whole = {"model": self.model, "stream": True, **body}
        path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
        wire = load.post(host=self.host, path=path, key=self.key, body=json.dumps(whole).encode())
        return await hangup.read_until(wire, host=self.host, port=self.port, chunks=chunks)

    async def explain(self, request_id: str) -> dict[str, Any]:
        """The explanation of a request, as soon as it is posted."""
        async with asyncio.timeout(_POSTED_S):
            while True:
                answer = await self.control.get(f"/requests/{request_id}")
                if answer.status_code == httpx.codes.OK:
                    return dict(answer.json())
                await asyncio.sleep(0.05)


@asynccontextmanager
async def running(*, engine_url: str | None) -> AsyncIterator[Service]:
    """A stack as `steelyard up` starts it, in front of an engine of its own or of the one at `engine_url`."""
    addresses = _free_addresses()
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="steelyard-bench-"))
        folder.chmod(0o711)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        shown = await asyncio.to_thread(_up, stack, folder, addresses=addresses, engine_url=engine_url)
        secret = json.loads((Path(shown["data_dir"]) / "credentials.json").read_text())["token"]
        async with httpx.AsyncClient(
            base_url=f"{addresses.control_url}/api/v1", headers={"authorization": f"Bearer {secret}"}
        ) as control:
            yield Service(
                "127.0.0.1",
                addresses.gateway,
                shown["api_key"],
                shown["model"],
                engine_url or addresses.engine_url,
                control,
            )


def _up(stack: ExitStack, folder: Path, *, addresses: Addresses, engine_url: str | None) -> dict[str, Any]:
    cli = [sys.executable, "-m", "app.cli.main"]
    where = ["--data-dir", str(folder / "data")]
    command = [*cli, "up", *where, "--detach", "--json", "--port", str(addresses.base)]
    command += ["--gateways", str(_ONE_GATEWAY)]
    command += ["--engine-url", engine_url] if engine_url else []
    stack.callback(subprocess.run, [*cli, "down", *where], check=False, stdout=subprocess.DEVNULL)
    started = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=_START_S)
    return dict(json.loads(started.stdout))


def _free_addresses() -> Addresses:
    """Ports that are free together."""
    found = (Addresses(base, _ONE_GATEWAY) for base in range(24000, 60000, 40))
    return next(each for each in found if not taken(each))
