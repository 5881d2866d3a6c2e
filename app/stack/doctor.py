"""Looks for what keeps the stack from running, with a fix for each finding. Reads only."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from app.core.clock import SystemClock
from app.core.errors import DependencyError
from app.stack.addresses import Addresses, taken
from app.stack.board import State
from app.stack.data_dir import DataDir, StackState, cache_folder, is_writable
from app.stack.demo_model import checksum_matches, is_provided, models_folder
from app.stack.postgres_home import installation
from app.stack.process_table import is_alive
from app.stack.program import SOURCE_ROOT
from app.stack.valkey import binary

_LEAST_FREE_BYTES = 1 << 30
_PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)(?:\s*;\s*([^\\]+))?", re.MULTILINE)


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at.   fix: what to do if it is not well."""

    what: str
    ok: bool
    detail: str
    fix: str = ""


def examine(data: DataDir) -> list[Finding]:
    """Every finding, in the order in which a start would stumble over them."""
    running = data.holder() is not None
    return [
        _python(),
        _packages(SOURCE_ROOT / "requirements.lock"),
        _clock(data.read_state()),
        _binaries(),
        _model(data),
        _folder(data.root, what="data folder"),
        _folder(data.journal, what="journal"),
        _disk(data.root),
        *([] if running else [_ports(data.read_state())]),
        *_processes(data.read_state(), running=running),
    ]


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding("python", sys.version_info >= (3, 11), version, "use Python 3.11 or newer")


def _packages(lock: Path) -> Finding:
    """Compares what is installed with the lock file; markers of other machines are passed over."""
    fix = "pip install --require-hashes --no-deps -r requirements.lock"
    if not lock.exists():
        return Finding("packages", ok=True, detail="installed without a lock file")
    wrong = [
        f"{name} {_installed(name) or 'missing'} instead of {version}"
        for name, version, marker in _PIN.findall(lock.read_text())
        if not marker.strip() and _installed(name) != version
    ]
    return Finding("packages", not wrong, "; ".join(wrong[:5]) or "as in requirements.lock", fix)


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _clock(last: StackState | None) -> Finding:
    """A clock that went back would put new usage into the past."""
    behind_ms = (last.started_ms if last else 0) - SystemClock().now_ms()
    detail = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    if behind_ms > 0:
        detail += f", {behind_ms / 1000:.0f} s before the last start"
    return Finding("clock", behind_ms <= 0, detail, "set the clock of this machine")


def _binaries() -> Finding:
    fix = "pip install --require-hashes --no-deps -r requirements.lock"
    try:
        commands = [[str(installation() / "bin" / "postgres"), "--version"], [str(binary()), "--version"]]
        words = [subprocess.run(one, check=True, capture_output=True, text=True).stdout for one in commands]
    except (DependencyError, OSError, subprocess.SubprocessError) as error:
        return Finding("binaries", ok=False, detail=str(error), fix=fix)
    return Finding("binaries", ok=True, detail="; ".join(word.strip().split(" sha")[0] for word in words))


def _model(data: DataDir) -> Finding:
    cache = cache_folder(data)
    folder = models_folder(cache)
    if not is_provided(cache):
        return Finding("demo model", ok=True, detail=f"not in {folder} yet; the next start fetches it")
    return Finding("demo model", checksum_matches(cache), str(folder), f"rm -r '{folder}' and start again")


def _folder(path: Path, *, what: str) -> Finding:
    fix = f"make {path} writable for you, or choose another: --data-dir FOLDER"
    return Finding(what, is_writable(path), str(path), fix)


def _disk(path: Path) -> Finding:
    existing = next(one for one in (path, *path.parents) if one.exists())
    free = shutil.disk_usage(existing).free
    detail = f"{free / (1 << 30):.1f} GiB free"
    return Finding("disk", free > _LEAST_FREE_BYTES, detail, f"make room near {existing}")


def _ports(last: StackState | None) -> Finding:
    base = urlsplit(last.gateway_url).port if last else None
    busy = taken(Addresses(base or 8080, gateways=2))
    named = ", ".join(f"{port} ({name})" for name, port in busy.items())
    return Finding("ports", not busy, named or "free", "stop what uses them, or: steelyard up --port PORT")


def _processes(last: StackState | None, *, running: bool) -> Iterator[Finding]:
    if last is None or not running:
        yield Finding("processes", ok=True, detail="the stack does not run")
        return
    for row in last.rows:
        ok = row.state is State.DONE or (row.state is State.READY and is_alive(row.pid, row.birth))
        yield Finding(row.name, ok, f"{row.state} {row.detail}".strip(), f"steelyard logs {row.name}")
