"""What was put out of sight in the queue, and views of it that are kept under a name."""

import sqlalchemy as sa
from alembic import op

from comfyrelay.store.types import JsonText, UtcTime

revision = "tenant_0008"
down_revision = "tenant_0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("ai_jobs", "batches"):
        op.add_column(table, sa.Column("cleared_at", UtcTime()))
    where = sa.text("cleared_at IS NOT NULL")
    op.create_index(
        "ix_ai_jobs_cleared", "ai_jobs", ["tenant_id", "status"], postgresql_where=where, sqlite_where=where
    )
    op.create_table(
        "views",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("area", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("search", JsonText(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_views")),
        sa.UniqueConstraint("tenant_id", "area", "name", name=op.f("uq_views_tenant_id_area_name")),
    )
