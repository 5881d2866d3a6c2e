"""`make seed`: make what lacks of the demo in the running stack. `python -m app.stack.seed [DATA-DIR]`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from app.core.errors import DependencyError
from app.stack.addresses import Addresses
from app.stack.data_dir import DataDir, cache_folder
from app.stack.services import Stack


def seed(data: DataDir) -> str:
    """Whether something had to be made. Raises DependencyError if no stack runs on the folder."""
    state = data.read_state()
    if state is None or data.holder() is None:
        raise DependencyError(f"no stack runs on {data.root}\nstart one: steelyard up --detach")
    gateways = sum(row.name.startswith("gateway-") for row in state.rows)
    embedded = any(row.name == "engine" for row in state.rows)
    addresses = Addresses(urlsplit(state.gateway_url).port or 0, gateways)
    if not embedded:
        raise DependencyError("the demo is seeded for the embedded engine; yours is registered already")
    stack = Stack(data, cache_folder(data), addresses)
    return asyncio.run(stack.demo().seed())


def main(arguments: Sequence[str]) -> int:
    try:
        print(seed(DataDir(Path(*arguments[:1] or [".steelyard"]).absolute())))
    except DependencyError as error:
        print(f"error: {error.public_message}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
