"""The audit of a dispatch, whichever workers had it, and who decided about a worker last, however long ago."""

import sqlalchemy as sa
from alembic import op

revision = "central_0014"
down_revision = "central_0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    dispatch, decisions = sa.text("dispatch_id IS NOT NULL"), sa.text("event IN ('approve', 'revoke')")
    op.create_index(
        "ix_worker_audit_logs_dispatch",
        "worker_audit_logs",
        ["dispatch_id", "id"],
        postgresql_where=dispatch,
        sqlite_where=dispatch,
    )
    op.create_index(
        "ix_worker_audit_logs_decisions",
        "worker_audit_logs",
        ["worker_id", "id"],
        postgresql_where=decisions,
        sqlite_where=decisions,
    )
