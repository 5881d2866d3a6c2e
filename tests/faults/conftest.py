"""One stack for all fault tests of a session: they leave it running and its books true."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.stack import Stack, running_stack


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """A stack of two gateways on an engine of our own."""
    with running_stack() as started:
        yield started
