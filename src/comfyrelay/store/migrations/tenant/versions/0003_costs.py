"""How long a job may wait before it may cost more, and what it cost."""

import sqlalchemy as sa
from alembic import op

revision = "tenant_0003"
down_revision = "tenant_0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("ai_jobs", sa.Column("max_wait_seconds", sa.Integer()))
    op.add_column("ai_jobs", sa.Column("cost_micros", sa.BigInteger(), server_default=sa.text("0"), nullable=False))
    op.add_column("ai_jobs", sa.Column("expected_cost_micros", sa.BigInteger()))
