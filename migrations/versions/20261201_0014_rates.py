"""Rates and concurrency in the authority's functions."""

from __future__ import annotations

from migrations.sql import run

revision = "20261201_0014"
down_revision = "20261201_0013"
branch_labels = None
depends_on = None

UP = """
SELECT 1;
"""

DOWN = """
SELECT 1;
"""


def upgrade() -> None:
    run(UP)


def downgrade() -> None:
    run(DOWN)
