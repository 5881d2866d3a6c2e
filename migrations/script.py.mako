"""${message}"""

from __future__ import annotations

from migrations.sql import run

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    ${upgrades if upgrades else "run('')"}


def downgrade() -> None:
    ${downgrades if downgrades else "run('')"}
