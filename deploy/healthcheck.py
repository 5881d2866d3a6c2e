"""Exits with 0 if the process of this container says that it is ready."""

from __future__ import annotations

import http.client
import os
import sys


def is_ready(port: int) -> bool:
    """True if this machine's /health on `port` answers 200."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(not is_ready(int(os.environ.get("STEELYARD_METRICS_PORT", "9100"))))
