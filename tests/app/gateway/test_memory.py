"""What large bodies took is the system's again when they are gone."""

from __future__ import annotations

import subprocess
import sys

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
