"""The file lock that proves a gateway process dead: `flock`, held from before the journal has its name.

`flock` and not `fcntl`: an `fcntl` lock is lost as soon as the process closes *any* descriptor of the
file, and it is not tied to the open file that the writer holds. Descriptors are close-on-exec, so no
child carries the lock beyond its process. The settler touches a temporary name only when it is old: it
can't take the lock between the file's creation and its locking.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from app.core.ids import IncarnationId

SUFFIX = ".journal"
_TEMPORARY = ".journal.new"


def path_of(folder: Path, incarnation_id: IncarnationId) -> Path:
    """Where the journal of an incarnation lies."""
    return folder / f"{incarnation_id}{SUFFIX}"


def create_locked(folder: Path, incarnation_id: IncarnationId, *, head: bytes) -> int:
    """The descriptor of a new journal that begins with `head`: locked, durable, then named.

    Raises FileExistsError if there is one already: an incarnation's id is used once.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o750)
    temporary = folder / f"{incarnation_id}{_TEMPORARY}"
    final = path_of(folder, incarnation_id)
    if final.exists():
        raise FileExistsError(f"there is a journal of {incarnation_id} already")
    descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.write(descriptor, head) != len(head):
            raise OSError("the journal's first record could not be written whole")
        os.fsync(descriptor)
        temporary.rename(final)
        sync_folder(folder)
    except BaseException:
        temporary.unlink(missing_ok=True)
        os.close(descriptor)
        raise
    return descriptor


def try_lock(descriptor: int) -> bool:
    """True if no process holds the lock of this open file any longer; it is ours then."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def names(path: Path, descriptor: int) -> bool:
    """True if the path still is this open file's: it was not removed, renamed, or given to another one."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def list_drafts(folder: Path) -> list[Path]:
    """Journals that are being created, or were when their process died."""
    return sorted(folder.glob(f"*{_TEMPORARY}"))


def remove_if_unlocked(draft: Path) -> bool:
    """Remove a draft that no process holds; True if it did."""
    try:
        descriptor = os.open(draft, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        if not try_lock(descriptor):
            return False
        draft.unlink(missing_ok=True)
        return True
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
