"""What every test may use: a real database, and how property tests draw."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

from tests.database import _template, database, database_server, empty_database

__all__ = ["_template", "database", "database_server", "empty_database"]

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("default"), derandomize=False, print_blob=True)
settings.register_profile("deep", parent=settings.get_profile("ci"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
