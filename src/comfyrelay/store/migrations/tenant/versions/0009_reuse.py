"""What makes a job equal to another, and which one it was answered with."""

import sqlalchemy as sa
from alembic import op

revision = "tenant_0009"
down_revision = "tenant_0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("ai_jobs", sa.Column("fingerprint", sa.Text()))
    op.add_column("ai_jobs", sa.Column("reused_from", sa.Text()))
    op.add_column("ai_jobs", sa.Column("saved_tokens", sa.BigInteger()))
    where = sa.text("fingerprint IS NOT NULL")
    op.create_index(
        "ix_ai_jobs_fingerprint", "ai_jobs", ["tenant_id", "fingerprint"], postgresql_where=where, sqlite_where=where
    )
