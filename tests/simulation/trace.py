"""What happened, in order: hashed always, printed on request. Two runs of one seed have one hash."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable

_KEPT = 4000


class Trace:
    """Takes notes.   clock: virtual seconds.   show: prints each line; the last ones are kept anyway."""

    def __init__(self, clock: Callable[[], float], *, show: Callable[[str], None] | None = None) -> None:
        self._clock = clock
        self._show = show
        self._hash = hashlib.sha256()
        self.lines: deque[str] = deque(maxlen=_KEPT)
        self.count = 0

    def note(self, who: str, what: str, *details: object) -> None:
        """Write down that `who` did `what`."""
        line = f"{self._clock():10.6f} {who:<12} {what} {' '.join(map(str, details))}"
        self.count += 1
        self._hash.update(line.encode())
        self.lines.append(line)
        if self._show is not None:
            self._show(line)

    def digest(self) -> str:
        """The hash of all notes so far."""
        return self._hash.hexdigest()
