"""A whole stack whose processes can be killed one by one, and the engine stand-in that it talks to."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx

from app.core.clock import SystemClock
from app.stack.account import myself
from app.stack.addresses import Addresses
from app.stack.board import Row, State
from app.stack.data_dir import Credentials, DataDir, StackState
from app.stack.postgres import OWNER, Postgres
from tests.e2e.guardian import guarded
from tests.e2e.stack import ROOT, START_TIMEOUT_S, Steelyard
from tests.faults.journals import Journals

GATEWAYS = ("gateway-1", "gateway-2")
MODEL = "simulated"
_PORTS = 40
_ENGINE_PORT = 39
_POLL_S = 0.05
T = TypeVar("T")


async def until(look: Callable[[], Awaitable[T | None]], *, within_s: float = 60) -> T:
    """What `look` finds, asked again until it finds something. Fails if it never does."""
    end = asyncio.get_running_loop().time() + within_s
    while not (found := await look()):
        assert asyncio.get_running_loop().time() < end, f"nothing within {within_s} s: {look.__qualname__}"
        await asyncio.sleep(_POLL_S)
    return found


@dataclass
class Engine:
    """The stand-in as a process of its own, always on one port.

    served: what it counted, by request id; gathered from each life before it is killed.
    """

    port: int
    served: dict[str, dict[str, Any]] = field(default_factory=dict)
    _process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it from the main thread: it dies with the thread that made it. Returns once it listens."""
        command = [sys.executable, "-m", "scheduler.simulator", "--port", str(self.port), "--model", MODEL]
        self._process = subprocess.Popen(
            [*command, "--chunk-ms", "10"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            **myself().arguments(signal.SIGKILL),
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == self.url

    def kill(self) -> None:
        """`kill -9`."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    async def gather(self) -> None:
        """Remember what this life of it has counted so far."""
        self.served.update(json.loads(await _page(f"{self.url}/simulator/stats"))["requests"])


@dataclass
class Stack:
    """A running stack.

    facts: what `up --json` printed last.   engine: the one behind its model.   deaths_ms: when a gateway
    was killed, in Unix time.   journals: all that the gateways ever wrote.
    """

    steelyard: Steelyard
    addresses: Addresses
    engine: Engine
    facts: dict[str, Any] = field(default_factory=dict)
    deaths_ms: list[int] = field(default_factory=list)
    journals: Journals = field(init=False)

    def __post_init__(self) -> None:
        self.journals = Journals(self.data.journal)

    @property
    def data(self) -> DataDir:
        return DataDir(self.steelyard.folder / "data")

    @property
    def key(self) -> str:
        return str(self.facts["api_key"])

    @property
    def api_url(self) -> str:
        return f"{self.addresses.control_url}/api/v1"

    @property
    def operator(self) -> dict[str, str]:
        """The headers of the operator's calls."""
        return {"authorization": f"Bearer {self.credentials().token}"}

    @property
    def owner_url(self) -> str:
        """The database as the owner of its tables."""
        return Postgres(self.data.postgres).url(role=OWNER)

    def up(self) -> None:
        """Start it, or start it again on its data. Fails with the command's own words."""
        where = ("--data-dir", str(self.data.root), "--port", str(self.addresses.base))
        command = ("up", *where, "--engine-url", self.engine.url, "--detach", "--json")
        outcome = self.steelyard(*command, timeout_s=START_TIMEOUT_S)
        assert outcome.returncode == 0, outcome.stderr
        self.facts = json.loads(outcome.stdout)

    def call_engine(self, kind: str) -> None:
        """Let the gateways take the stand-in for that kind of engine."""
        with httpx.Client(base_url=self.api_url, headers=self.operator, verify=False) as control:
            [backend] = control.get("/backends").json()["data"]
            answer = control.patch(f"/backends/{backend['id']}", json={"engine": kind})
        assert answer.status_code == 200, answer.text

    def down(self) -> None:
        """Stop it in order."""
        self.steelyard("down", "--data-dir", str(self.data.root))

    def state(self) -> StackState:
        state = self.data.read_state()
        assert state is not None, "a running stack writes its state down"
        return state

    def row(self, name: str) -> Row:
        return next(row for row in self.state().rows if row.name == name)

    def kill(self, name: str) -> int:
        """`kill -9` a service; returns the pid that it had."""
        pid = self.row(name).pid
        os.kill(pid, signal.SIGKILL)
        if name in GATEWAYS:
            self.deaths_ms.append(SystemClock().now_ms())
        return pid

    def kill_supervisor(self) -> None:
        """`kill -9` the process that keeps all others."""
        os.kill(self.state().pid, signal.SIGKILL)

    async def back(self, name: str, *, was: int) -> None:
        """Wait until the service has come back in another process than `was`."""

        async def look() -> bool:
            row = self.row(name)
            return row.state is State.READY and row.pid not in (0, was)

        await until(look)

    async def orphaned(self) -> None:
        """Wait until nobody holds the data folder: the killed supervisor's lock is gone."""

        async def look() -> bool:
            return self.data.holder() is None

        await until(look)

    def metrics_ports(self) -> dict[str, int]:
        """The port of each process' own listener."""
        gateways = {name: self.addresses.gateway_metrics(index) for index, name in enumerate(GATEWAYS)}
        return {**gateways, "settler": self.addresses.settler_metrics}

    async def metrics(self, name: str) -> dict[str, float]:
        """The samples of a process, labels and all; empty while it does not answer."""
        page = await _page(f"http://127.0.0.1:{self.metrics_ports()[name]}/metrics")
        lines = [line for line in page.splitlines() if line and not line.startswith("#")]
        return {sample: float(value) for sample, value in (line.rsplit(" ", 1) for line in lines)}

    async def incarnation(self, name: str) -> str | None:
        """The life of a gateway that serves now, None while it does not answer."""
        page = await _page(f"http://127.0.0.1:{self.metrics_ports()[name]}/health")
        return str(json.loads(page)["incarnation_id"]) if page else None

    def credentials(self) -> Credentials:
        """What `up` made for its user."""
        credentials = self.data.read_credentials()
        assert credentials is not None
        return credentials

    def control(self) -> httpx.AsyncClient:
        """A client of the control API, signed in as the operator."""
        return httpx.AsyncClient(base_url=self.api_url, headers=self.operator, timeout=20, verify=False)


@contextmanager
def running_stack() -> Iterator[Stack]:
    """A fresh stack with the demo in it, and its engine; nothing of them is left afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="sy-faults-"))
    folder.chmod(0o711)
    base = _free_block()
    engine = Engine(base + _ENGINE_PORT)
    steelyard = Steelyard(folder, environment={"TMPDIR": str(folder)})
    stack = Stack(steelyard, Addresses(base, len(GATEWAYS)), engine)
    engine.start()
    with guarded(folder):
        try:
            stack.up()
            stack.call_engine("vllm")
            yield stack
        finally:
            stack.down()
            engine.kill()


async def _page(url: str) -> str:
    try:
        async with httpx.AsyncClient(timeout=5, verify=False) as http:  # it reads no certificates: 30 ms
            return (await http.get(url)).text
    except httpx.HTTPError:
        return ""


def _free_block() -> int:
    """The first of a run of ports that are all free now, begun anywhere: others look for theirs too."""
    blocks = list(range(21000, 32000, _PORTS))
    random.shuffle(blocks)
    return next(base for base in blocks if all(map(_is_free, range(base, base + _PORTS))))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
