"""A PostgreSQL for many processes that simulate, each in a database of its own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from app.stack.postgres import Postgres
from tests.database import Server


@dataclass(frozen=True)
class Ground:
    """A server that runs, and the name of a database in it with the newest schema."""

    folder: Path
    template: str

    def server(self) -> Server:
        """The server, as a child of whoever started it sees it."""
        return Server(Postgres(self.folder, durable=False))


@contextmanager
def open_ground() -> Iterator[Ground]:
    """One that is gone at the end of the block."""
    folder = Path(tempfile.mkdtemp(prefix="sy-ground-"))
    folder.chmod(0o711)
    postgres = Postgres(folder / "postgres", durable=False)
    try:
        postgres.start()
        yield Ground(folder / "postgres", Server(postgres).make_template())
    finally:
        postgres.stop()
        shutil.rmtree(folder, ignore_errors=True)
