"""What a settler's post costs: indexes and checks that nobody needs."""

from __future__ import annotations

from migrations.sql import run

revision = "20261201_0012"
down_revision = "20261201_0011"
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
