"""An index of the items of batches, in their order, with what a list of batches shows of them."""

import sqlalchemy as sa
from alembic import op

revision = "tenant_0007"
down_revision = "tenant_0006"
branch_labels = None
depends_on = None

ITEM = ["batch_id", "item_no", "id", "tenant_id", "status", "completed_at", "priority", "workflow_id", "effect_id"]


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        op.create_index("ix_ai_jobs_items", "ai_jobs", ITEM, sqlite_where=sa.text("batch_id IS NOT NULL"))
