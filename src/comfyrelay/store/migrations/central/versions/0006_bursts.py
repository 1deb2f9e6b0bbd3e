"""What a second costs, how long jobs may wait before they may go to the cloud, and which went."""

import sqlalchemy as sa
from alembic import op

from comfyrelay.store.types import JsonText, UtcTime

revision = "central_0006"
down_revision = "central_0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tenants", sa.Column("max_wait_seconds", sa.Integer()))
    op.add_column("effects", sa.Column("max_wait_seconds", sa.Integer()))
    op.add_column("workflows", sa.Column("may_burst", sa.Boolean(), server_default=sa.false(), nullable=False))
    for name in ("self_hosted_micros_per_second", "cloud_micros_per_second", "burst_micros_per_hour"):
        op.add_column("workflows", sa.Column(name, sa.BigInteger()))
    for name in ("self_hosted_micros_per_second", "cloud_micros_per_second", "expected_cost_micros"):
        op.add_column("ai_job_dispatches", sa.Column(name, sa.BigInteger()))
    op.add_column(
        "ai_job_dispatches", sa.Column("cost_micros", sa.BigInteger(), server_default=sa.text("0"), nullable=False)
    )
    op.add_column("ai_job_dispatches", sa.Column("max_wait_seconds", sa.Integer()))
    op.create_table(
        "bursts",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("dispatch_id", sa.BigInteger(), nullable=False),
        sa.Column("workflow_id", sa.BigInteger(), nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("ended_at", UtcTime()),
        sa.Column("expected_cost_micros", sa.BigInteger(), nullable=False),
        sa.Column("cost_micros", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("back_reason", sa.Text()),
        sa.Column("seen", JsonText(), nullable=False),
        sa.CheckConstraint("stage IN ('staging', 'production')", name=op.f("ck_bursts_stage")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_bursts")),
        sa.UniqueConstraint("dispatch_id", name=op.f("uq_bursts_dispatch_id")),
    )
    op.create_index(op.f("ix_bursts_ended_at"), "bursts", ["ended_at"], unique=False)
