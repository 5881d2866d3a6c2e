"""Which port is whose: all follow from the one that the user names."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass

from app.core.errors import DependencyError

_FIRST_GATEWAY_METRICS = 10
_FIRST_OPEN = 1024
"""Below it only root may listen, by Linux' defaults."""
HOST = "127.0.0.1"


@dataclass(frozen=True)
class Addresses:
    """The ports of one stack.   base: the gateway's.   gateways: processes that share it."""

    base: int
    gateways: int

    @property
    def gateway(self) -> int:
        return self.base

    @property
    def control(self) -> int:
        return self.base + 1

    @property
    def engine(self) -> int:
        return self.base + 2

    @property
    def settler_metrics(self) -> int:
        return self.base + 3

    @property
    def worker_metrics(self) -> int:
        return self.base + 4

    @property
    def control_metrics(self) -> int:
        return self.base + 5

    def gateway_metrics(self, index: int) -> int:
        """The port of the index-th gateway's own listener; index counts from 0."""
        return self.base + _FIRST_GATEWAY_METRICS + index

    @property
    def gateway_url(self) -> str:
        return f"http://{HOST}:{self.gateway}"

    @property
    def control_url(self) -> str:
        return f"http://{HOST}:{self.control}"

    @property
    def engine_url(self) -> str:
        return f"http://{HOST}:{self.engine}"

    def named(self) -> dict[str, int]:
        """Every port with the service that listens there."""
        fixed = {
            "gateway": self.gateway,
            "control": self.control,
            "engine": self.engine,
            "settler metrics": self.settler_metrics,
            "worker metrics": self.worker_metrics,
            "control metrics": self.control_metrics,
        }
        return fixed | {f"gateway-{n + 1} metrics": self.gateway_metrics(n) for n in range(self.gateways)}


def taken(addresses: Addresses) -> dict[str, int]:
    """Those ports on which someone else listens, or that we may not use."""
    return {name: port for name, port in addresses.named().items() if not _is_free(port)}


def require_free(addresses: Addresses) -> None:
    """Raises DependencyError naming each port that is taken and what to do."""
    if busy := taken(addresses):
        ports = ", ".join(f"{port} ({name})" for name, port in busy.items())
        if addresses.base < _FIRST_OPEN:
            raise DependencyError(
                f"port {ports} is in use, or not open to you: below {_FIRST_OPEN} is for root\n"
                "choose other ports: steelyard up --port 9000"
            )
        raise DependencyError(
            f"port {ports} is in use by another program\n"
            f"stop that program, or choose other ports: steelyard up --port {addresses.base + 100}"
        )


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As our servers do: a connection that lingers in TIME_WAIT is no listener.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True
