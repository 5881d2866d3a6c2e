"""A worker's delivery as a process, to be killed: `python -m tests.app.workers.deliver_process`."""

from __future__ import annotations

from app.core.settings import settings
from app.workers.deliveries import deliver_alerts

if __name__ == "__main__":
    deliver_alerts(settings().database_url.get_secret_value(), settings=settings())
