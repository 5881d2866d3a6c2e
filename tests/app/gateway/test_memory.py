"""What large bodies took is the system's again when they are gone."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys

import pytest

from app.gateway.relay import Relay
from scheduler.dispatch import Dispatch
from scheduler.transport.exchange import Exchange
from tests.app.gateway.house import House, chat

_PROGRAM = """
from app.gateway.memory import return_large_blocks

def resident_kb():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

told = return_large_blocks()
before, small = resident_kb(), []
for size in range(4, 17):
    bodies = [bytes(size * 1_000_000) for _ in range(3)]
    bodies = [body + b"," for body in bodies]
    small.append([bytes(1000) for _ in range(100)])
    bodies.clear()
print(told, resident_kb() - before)
"""


def test_nothing_of_large_bodies_stays_resident() -> None:
    ran = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    told, grown_kb = ran.stdout.split()
    assert told == "True"
    assert int(grown_kb) < 8 * 1024


def _held() -> list[object]:
    return [each for each in gc.get_objects() if isinstance(each, Relay | Dispatch | Exchange)]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("fault", ["", "[simulator fault=status:400]", "[simulator fault=die:2]"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_is_forgotten_at_its_end_without_the_collector(
    house: House, stream: bool, fault: str
) -> None:
    """A cycle would keep its body, which may be megabytes, until the collector's next full round."""
    gc.collect()
    gc.disable()
    try:
        before = len(_held())
        for _ in range(3):
            await house.client.post("/v1/chat/completions", json=chat(fault + "weigh", stream=stream))
        async with asyncio.timeout(5):
            while len(_held()) > before:
                await asyncio.sleep(0.01)
    finally:
        gc.enable()
