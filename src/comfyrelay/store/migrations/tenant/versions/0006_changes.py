"""What changed for a tenant, transaction by transaction, for those who follow it."""

import sqlalchemy as sa
from alembic import op

from comfyrelay.store.types import JsonText, UtcTime

revision = "tenant_0006"
down_revision = "tenant_0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "changes",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("txid", sa.BigInteger(), nullable=False),
        sa.Column("ids", JsonText(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_changes")),
    )
    op.create_index(op.f("ix_changes_tenant_id_txid"), "changes", ["tenant_id", "txid"])
