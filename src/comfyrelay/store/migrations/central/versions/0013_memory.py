"""Which GPUs are too small for which workflows, how much memory those of workers have, and what stays loaded."""

import sqlalchemy as sa
from alembic import op

from comfyrelay.store.types import UtcTime

revision = "central_0013"
down_revision = "central_0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("workflows", sa.Column("keep_loaded", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.add_column("workers", sa.Column("memory_bytes", sa.BigInteger()))
    op.add_column("ai_job_dispatches", sa.Column("ran_out_bytes", sa.BigInteger()))
    op.create_table(
        "workflow_memory",
        sa.Column("workflow_id", sa.BigInteger(), nullable=False),
        sa.Column("workflow_hash", sa.Text(), nullable=False),
        sa.Column("ran_out_bytes", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["workflow_id"], ["workflows.id"], name=op.f("fk_workflow_memory_workflow_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("workflow_id", "workflow_hash", name=op.f("pk_workflow_memory")),
    )
