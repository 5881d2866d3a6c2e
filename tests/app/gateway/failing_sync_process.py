"""A gateway on a disk that takes writes and fails to keep them once `broken` lies in the journal's folder."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

from app.bootstrap.gateway import main

_SIGN = Path(os.environ["STEELYARD_JOURNAL_DIR"]) / "broken"
_sync = os.fdatasync


def fdatasync(descriptor: int) -> None:
    """As the kernel's, which tells of a page that it lost."""
    if _SIGN.exists():
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    _sync(descriptor)


if __name__ == "__main__":
    os.fdatasync = fdatasync
    sys.exit(main())
