"""Which definitions of nodes each worker has, and each fleet had last."""

import sqlalchemy as sa
from alembic import op

revision = "central_0003"
down_revision = "central_0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("workers", sa.Column("definitions_hash", sa.Text(), nullable=True))
    op.add_column("fleets", sa.Column("definitions_hash", sa.Text(), nullable=True))
