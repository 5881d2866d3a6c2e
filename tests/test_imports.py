"""The walls between rooms: the contracts of pyproject.toml, and what the data plane may load."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[1]
DATA_PLANE = (
    "app.gateway",
    "app.catalog.snapshot",
    "app.catalog.feed",
    "app.bootstrap.gateway",
    "billing.metering",
    "billing.rating",
    "billing.quota.leases",
    "billing.quota.borrower",
    "billing.journal.writer",
    "scheduler",
)
NOT_IN_IT = ("sqlalchemy", "celery", "stripe", "jinja2", "fastapi")
NOT_AT_ITS_START = (*NOT_IN_IT, "tokenizers")
"""What is loaded, if at all, when a request needs it."""


@cache
def _graph() -> grimp.ImportGraph:
    """Who imports whom, packages from outside too; made anew each time, for a cache could be stale."""
    return grimp.build_graph(
        "app", "billing", "scheduler", "migrations", include_external_packages=True, cache_dir=None
    )


def test_the_import_contracts_hold() -> None:
    lint = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    outcome = _python(lint, "--no-cache")
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


@pytest.mark.parametrize("room", DATA_PLANE)
def test_the_data_plane_is_free_of_frameworks(room: str) -> None:
    graph = _graph()
    assert room in graph.modules, f"there is no {room}"
    for outsider in graph.modules & set(NOT_IN_IT):
        below = {room, *graph.find_descendants(room)}
        chains = (graph.find_shortest_chain(importer=module, imported=outsider) for module in below)
        assert not [" → ".join(chain) for chain in chains if chain]


def test_a_gateway_starts_without_frameworks_of_the_control_plane_and_without_tokenizers() -> None:
    probe = (
        f"import app.bootstrap.gateway, sys; print(sorted(set({NOT_AT_ITS_START!r}) & sys.modules.keys()))"
    )
    loaded = _python(probe)
    assert loaded.stdout.strip() == "[]", loaded.stderr


def _python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
