"""Deliveries of a tenant are listed, newest first."""

from alembic import op

revision = "tenant_0010"
down_revision = "tenant_0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(op.f("ix_webhook_deliveries_tenant_id_id"), "webhook_deliveries", ["tenant_id", "id"])
