"""What the transport needs from those who use it."""

from __future__ import annotations

from typing import Protocol

from app.core.errors import EngineError


class Sink(Protocol):
    """Receives one exchange: `head`, then any number of `piece`, then one `end`; or one `error` at any point.

    All are called synchronously, in order, from the event loop, and never after `Exchange.cancel`. A sink
    must not raise and must not block; it may cancel, pause or start another exchange.
    """

    def head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """The final status (200 to 599) and headers, names in lower case; once, never for a 1xx."""
        ...

    def piece(self, data: bytes) -> None:
        """Some bytes of the body, free of transfer coding, never empty."""
        ...

    def end(self) -> None:
        """The body is complete, as its framing promised."""
        ...

    def error(self, error: EngineError) -> None:
        """Instead of `end`: nothing follows."""
        ...
