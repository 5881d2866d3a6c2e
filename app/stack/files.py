"""Files that are either whole or not there, and readable by nobody else."""

from __future__ import annotations

import os
from pathlib import Path


def write_private(path: Path, content: bytes) -> None:
    """Replace `path` by `content` in one step, mode 0600, on disk when this returns."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o600)
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    draft.replace(path)
