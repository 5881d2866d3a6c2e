"""The data folder of one stack: what lies where, who holds it, and what is known of the last run."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from app.core.errors import DependencyError
from app.stack.board import Row
from app.stack.files import write_private

_LOCK_TRIES = 10
_LOCK_RETRY_S = 0.05
"""`holder` takes the lock for an instant to see whether it is free: not every refusal is a stack."""

Phase = Literal["starting", "ready", "stopping", "stopped", "failed"]


class StackState(msgspec.Struct):
    """What a run tells of itself to `status`, `down` and `logs`. Holds no secret."""

    pid: int
    started_ms: int
    phase: Phase
    gateway_url: str
    console_url: str
    rows: list[Row] = []
    error: str = ""


class Credentials(msgspec.Struct):
    """What `up` made for its user; kept 0600 so that the next `up` prints the same."""

    admin_email: str
    admin_password: str
    gateway_url: str = ""
    control_url: str = ""
    token: str = ""
    api_key: str = ""
    tenant_id: str = ""
    project_id: str = ""
    model: str = ""


@dataclass(frozen=True)
class DataDir:
    """root: an absolute path."""

    root: Path

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def journal(self) -> Path:
        return self.root / "journal"

    @property
    def postgres(self) -> Path:
        return self.root / "postgres"

    @property
    def valkey(self) -> Path:
        return self.root / "valkey"

    @property
    def state_file(self) -> Path:
        return self.root / "state.json"

    @property
    def credentials_file(self) -> Path:
        return self.root / "credentials.json"

    @property
    def lock_file(self) -> Path:
        return self.root / "lock"

    def make(self) -> None:
        """Make the folder; others may pass through it only if a server of ours is another account."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self.root.chmod(0o711 if os.geteuid() == 0 else 0o700)
            self.logs.mkdir(mode=0o700, exist_ok=True)
            self.journal.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise DependencyError(
                f"can't use {self.root} as data folder: {error.strerror}\n"
                f"choose another: steelyard up --data-dir FOLDER"
            ) from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder until we end, however we end. Raises DependencyError if another does."""
        descriptor = os.open(self.lock_file, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            self._lock(descriptor)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            yield
        finally:
            os.close(descriptor)

    def holder(self) -> int | None:
        """The pid of the process that holds the folder, None if nobody does."""
        try:
            descriptor = os.open(self.lock_file, os.O_RDWR)
        except FileNotFoundError:
            return None
        except PermissionError as error:
            raise DependencyError(f"{self.root} belongs to another user") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
        except BlockingIOError:
            return int(os.pread(descriptor, 32, 0) or b"0")
        finally:
            os.close(descriptor)

    def read_state(self) -> StackState | None:
        """The state of the last run; None if there was none or its file is damaged."""
        try:
            return msgspec.json.decode(self.state_file.read_bytes(), type=StackState)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None

    def write_state(self, state: StackState) -> None:
        write_private(self.state_file, msgspec.json.encode(state))

    def read_credentials(self) -> Credentials | None:
        """What an earlier `up` made. Raises DependencyError if the file is damaged."""
        try:
            return msgspec.json.decode(self.credentials_file.read_bytes(), type=Credentials)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            raise DependencyError(f"{self.credentials_file} is damaged: {error}") from error

    def write_credentials(self, credentials: Credentials) -> None:
        write_private(self.credentials_file, msgspec.json.encode(credentials))

    def _lock(self, descriptor: int) -> None:
        for _ in range(_LOCK_TRIES):
            with suppress(BlockingIOError):
                return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            time.sleep(_LOCK_RETRY_S)
        pid = os.pread(descriptor, 32, 0).decode() or "unknown"
        raise DependencyError(
            f"a stack already runs on {self.root} (pid {pid})\n"
            f"stop it: steelyard down --data-dir '{self.root}'; or use another folder and other ports: "
            "--data-dir FOLDER --port 9000"
        )


def cache_folder(data: DataDir) -> Path:
    """Where the model is kept: `STEELYARD_CACHE_DIR`, else `~/.cache/steelyard`, else in the data folder."""
    if chosen := os.environ.get("STEELYARD_CACHE_DIR"):
        return Path(chosen).absolute()
    shared = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "steelyard"
    return shared if shared.is_absolute() and is_writable(shared) else data.root / "cache"


def is_writable(folder: Path) -> bool:
    """True if we could write into `folder`, or make it. Changes nothing."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
