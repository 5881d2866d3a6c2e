"""A model's own tokenizer: a file on the gateways' machines, for engines that report usage only at the end."""

from __future__ import annotations

from migrations.sql import run

revision = "20261201_0011"
down_revision = "20261201_0010"
branch_labels = None
depends_on = None

UP = r"""
ALTER TABLE model ADD COLUMN tokenizer text
  CHECK (tokenizer ~ '^/[^[:cntrl:]]+\.json$' AND length(tokenizer) <= 1024);
"""

DOWN = """
ALTER TABLE model DROP COLUMN tokenizer;
"""


def upgrade() -> None:
    run(UP)


def downgrade() -> None:
    run(DOWN)
