"""Tasks, what a refusal lacked, and what becomes of a suspended tenant's streams."""

from __future__ import annotations

from migrations.sql import run

revision = "20261201_0015"
down_revision = "20261201_0014"
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
