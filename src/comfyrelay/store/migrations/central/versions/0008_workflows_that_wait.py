"""Workflows that wait for nodes that no worker has."""

import sqlalchemy as sa
from alembic import op

from comfyrelay.store.types import JsonText

revision = "central_0008"
down_revision = "central_0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("workflows", sa.Column("waiting", JsonText()))
    where = sa.text("waiting IS NOT NULL AND deleted_at IS NULL")
    op.create_index("ix_workflows_waiting", "workflows", ["id"], postgresql_where=where, sqlite_where=where)
