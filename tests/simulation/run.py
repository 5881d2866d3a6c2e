"""Runs seeds: `simulate` one, on a database that is kept for all."""

from __future__ import annotations

import gc
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from app.stack.postgres import SUPERUSER
from tests.database import Server
from tests.simulation.arena import Arena
from tests.simulation.oracle import judge
from tests.simulation.outcome import Outcome
from tests.simulation.plan import Plan, plan_of
from tests.simulation.world import World

_WARM = 0
"""The run that compiles and connects what later ones find compiled and connected."""
_CLEAN_EVERY = 50


def simulate(
    seed: int,
    *,
    database: Arena,
    plan: Plan | None = None,
    show: Callable[[str], None] | None = None,
    on_end: Callable[[World], object] = bool,
) -> Outcome:
    """The outcome of a seed: the same numbers, the same trace, whenever and wherever it runs.

    plan: instead of the seed's own.   show: gets each line of the trace.   on_end: looks at the world.
    """
    if not database.runs:
        database.runs = 1
        simulate(_WARM, database=database)
    database.runs += 1
    database.empty()
    if database.runs % _CLEAN_EVERY == 0:
        database.vacuum()
        gc.collect()
    folder = Path(tempfile.mkdtemp(prefix="sy-sim-"))
    gc.disable()
    world = World(plan or plan_of(seed), database, folder=folder, show=show)
    try:
        world.run()
        on_end(world)
        return judge(world)
    finally:
        world.close()
        gc.enable()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def arena_on(server: Server, *, template: str) -> Iterator[Arena]:
    """A database on a server that runs, made of a template with the newest schema."""
    database = server.create(template=template)
    arena = Arena(server.postgres.url(database.name, role=SUPERUSER), database.app_url)
    try:
        yield arena
    finally:
        with warnings.catch_warnings():  # what is left of killed settlers' connections
            warnings.simplefilter("ignore")
            gc.collect()
        arena.close()
        server.drop(database.name)
