"""Which protocol and version each worker speaks, and the key with which it may register again."""

import sqlalchemy as sa
from alembic import op

revision = "central_0002"
down_revision = "central_0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("workers", sa.Column("registration_key_hash", sa.Text(), nullable=True))
    op.add_column("workers", sa.Column("protocol", sa.Integer(), server_default=sa.text("1"), nullable=False))
    op.add_column("workers", sa.Column("version", sa.Text(), nullable=True))
