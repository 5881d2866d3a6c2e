"""Brings up what a benchmark compares: the whole stack, nginx, and the engine stand-in behind both."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MODEL = "bench"
_PATIENCE_S = 90.0
_NGINX_WORKERS = 2


@dataclass(frozen=True)
class Contender:
    """Something that answers `/v1/chat/completions`.   pids: the processes whose CPU counts."""

    name: str
    host: str
    port: int
    key: str
    model: str
    pids: tuple[int, ...]


def contenders(stack: ExitStack) -> list[Contender]:
    """Steelyard with everything on, and nginx where it is installed; stopped when `stack` closes."""
    engine_port = _simulator(stack)
    found = [_steelyard(stack, engine_port=engine_port)]
    if program := shutil.which("nginx"):
        found.append(_nginx(stack, program, engine_port=engine_port))
    else:
        print("nginx is not installed: no ratio to it (apt-get install nginx)", file=sys.stderr)
    return found


def _simulator(stack: ExitStack) -> int:
    command = [sys.executable, "-m", "scheduler.simulator", "--model", _MODEL, "--max-num-seqs", "4096"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    stack.callback(_end, process)
    assert process.stdout is not None
    return int(process.stdout.readline().rsplit(":", 1)[1])


def _steelyard(stack: ExitStack, *, engine_port: int) -> Contender:
    folder = Path(tempfile.mkdtemp(prefix="steelyard-bench-"))
    folder.chmod(0o711)
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    cli = [sys.executable, "-m", "app.cli.main"]
    where = ["--data-dir", str(folder / "data")]
    port = _free_block()
    command = [*cli, "up", *where, "--detach", "--json", "--port", str(port)]
    command += ["--engine-url", f"http://127.0.0.1:{engine_port}"]
    started = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=_PATIENCE_S)
    stack.callback(subprocess.run, [*cli, "down", *where], check=False, stdout=subprocess.DEVNULL)
    shown: dict[str, Any] = json.loads(started.stdout)
    pids = tuple(s["pid"] for s in shown["services"] if s["name"].startswith("gateway"))
    return Contender("steelyard", "127.0.0.1", port, shown["api_key"], shown["model"], pids)


def _nginx(stack: ExitStack, program: str, *, engine_port: int) -> Contender:
    folder = Path(tempfile.mkdtemp(prefix="steelyard-nginx-"))
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    port = _free_block()
    (folder / "nginx.conf").write_text(f"""
daemon off; worker_processes {_NGINX_WORKERS}; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 8192; }}
http {{
  access_log off; client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder};
  upstream engine {{ server 127.0.0.1:{engine_port}; keepalive 256; }}
  server {{ listen 127.0.0.1:{port} reuseport; keepalive_requests 1000000;
    location / {{ proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; }} }}
}}
""")
    process = subprocess.Popen([program, "-p", str(folder), "-c", str(folder / "nginx.conf")])
    stack.callback(_end, process)
    _wait_for(port)
    children: list[str] = []
    while len(children) < _NGINX_WORKERS:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return Contender("nginx", "127.0.0.1", port, "none", _MODEL, (process.pid, *map(int, children)))


def _free_block() -> int:
    """A port that is free together with the twenty after it."""
    for first in range(21000, 60000, 40):
        if all(_is_free(port) for port in range(first, first + 20)):
            return first
    raise RuntimeError("no twenty free ports in a row")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def _wait_for(port: int) -> None:
    end = time.monotonic() + _PATIENCE_S
    while _is_free(port):
        if time.monotonic() > end:
            raise TimeoutError(f"nothing listens on port {port}")
        time.sleep(0.02)


def _end(process: subprocess.Popen[Any]) -> None:
    process.terminate()
    process.wait(timeout=30)
