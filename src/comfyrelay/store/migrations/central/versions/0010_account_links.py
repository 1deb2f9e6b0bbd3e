"""Links that set a password once, and codes that make the first administrator."""

import sqlalchemy as sa
from alembic import op

from comfyrelay.store.types import UtcTime

revision = "central_0010"
down_revision = "central_0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "account_links",
        sa.Column("token_hash", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=True),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("expires_at", UtcTime(), nullable=False),
        sa.Column("used_at", UtcTime(), nullable=True),
        sa.CheckConstraint("kind IN ('reset', 'setup')", name=op.f("ck_account_links_kind")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_account_links_user_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("token_hash", name=op.f("pk_account_links")),
    )
    op.create_index(op.f("ix_account_links_user_id"), "account_links", ["user_id"], unique=False)
