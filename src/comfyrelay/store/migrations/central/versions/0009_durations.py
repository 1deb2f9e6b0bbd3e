"""How much durations vary is not kept: nobody asked for it."""

from alembic import op

revision = "central_0009"
down_revision = "central_0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_column("workflow_durations", "mean_square")
