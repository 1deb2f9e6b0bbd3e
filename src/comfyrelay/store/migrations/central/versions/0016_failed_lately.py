"""What failed lately, without reading all that ever failed."""

import sqlalchemy as sa
from alembic import op

revision = "central_0016"
down_revision = "central_0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    failed = sa.text("status = 'failed' AND finished_at IS NOT NULL")
    op.create_index(
        "ix_ai_job_dispatches_failed",
        "ai_job_dispatches",
        ["finished_at"],
        postgresql_where=failed,
        sqlite_where=failed,
    )
