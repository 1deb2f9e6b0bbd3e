"""What jobs need of a worker, and which workers are known to lack it."""

import sqlalchemy as sa
from alembic import op

from comfyrelay.store.types import JsonText, UtcTime

revision = "central_0004"
down_revision = "central_0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "workflow_needs",
        sa.Column("workflow_hash", sa.Text(), nullable=False),
        sa.Column("node_types", JsonText(), nullable=False),
        sa.Column("models", JsonText(), nullable=False),
        sa.Column("used_at", UtcTime(), nullable=False),
        sa.PrimaryKeyConstraint("workflow_hash", name=op.f("pk_workflow_needs")),
    )
    op.create_table(
        "worker_gaps",
        sa.Column("worker_id", sa.Text(), nullable=False),
        sa.Column("workflow_hash", sa.Text(), nullable=False),
        sa.Column("node_types", JsonText(), nullable=False),
        sa.Column("models", JsonText(), nullable=False),
        sa.Column("silent", JsonText(), nullable=False),
        sa.ForeignKeyConstraint(
            ["worker_id"], ["workers.worker_id"], name=op.f("fk_worker_gaps_worker_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["workflow_hash"],
            ["workflow_needs.workflow_hash"],
            name=op.f("fk_worker_gaps_workflow_hash"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("worker_id", "workflow_hash", name=op.f("pk_worker_gaps")),
    )
    op.create_index(op.f("ix_worker_gaps_workflow_hash"), "worker_gaps", ["workflow_hash"], unique=False)
