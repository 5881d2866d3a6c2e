"""Folders for sockets and secrets: private, and short enough for a Unix socket's address."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from app.core.errors import DependencyError
from app.stack.account import Account

_LONGEST_SOCKET_PATH = 107
"""`sockaddr_un.sun_path` has 108 bytes and ends with a zero (unix(7))."""


def short_socket_folder(folder: Path, name: str) -> Path:
    """`folder` if a socket `name` can be addressed there, else a private, stable one in the temporary folder.

    Clients take a comma for the end of a host's name, hence of a folder's.
    """
    if len(os.fsencode(folder / name)) <= _LONGEST_SOCKET_PATH and not set(',"') & set(str(folder)):
        return folder
    return Path(tempfile.gettempdir()) / f"steelyard-{os.geteuid()}-{folder_hash(folder)}"


def private_folder(path: Path, account: Account) -> Path:
    """`path` as a folder that only `account` may enter. Raises DependencyError if it is someone else's."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    owner = path.lstat().st_uid
    if path.is_symlink() or owner not in (account.uid, os.geteuid()):
        raise DependencyError(f"{path} belongs to someone else (uid {owner}): remove it and start again")
    path.chmod(0o700)
    account.give(path)
    return path


def folder_hash(path: Path) -> str:
    """A short name for `path`, the same each time."""
    return hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:16]
