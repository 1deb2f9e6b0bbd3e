"""Effects have a picture."""

import sqlalchemy as sa
from alembic import op

revision = "central_0011"
down_revision = "central_0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("effects", sa.Column("preview_path", sa.Text(), nullable=True))
