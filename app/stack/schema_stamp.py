"""Remembers which migrations a data folder has had, so that a start that has none to run runs none."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from app.stack.files import write_private


@dataclass(frozen=True)
class SchemaStamp:
    """path: where the stamp lies.   versions: the folder of the migration scripts."""

    path: Path
    versions: Path

    def is_current(self) -> bool:
        """True if exactly these scripts were run to their end on this data folder."""
        try:
            return self.path.read_text() == self._digest()
        except FileNotFoundError:
            return False

    def write(self) -> None:
        """Say that these scripts have been run."""
        write_private(self.path, self._digest().encode())

    def _digest(self) -> str:
        digest = hashlib.sha256()
        for script in sorted(self.versions.glob("*.py")):
            digest.update(f"{script.name} {script.stat().st_size}\n".encode())
            digest.update(script.read_bytes())
        return digest.hexdigest()
