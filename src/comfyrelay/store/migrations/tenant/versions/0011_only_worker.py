"""Jobs that one worker alone may run, and deliveries by what came of them."""

import sqlalchemy as sa
from alembic import op

revision = "tenant_0011"
down_revision = "tenant_0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("ai_jobs", sa.Column("only_worker", sa.Text(), nullable=True))
    op.create_index("ix_webhook_deliveries_status", "webhook_deliveries", ["status", "id"])
