"""Why a batch is held."""

import sqlalchemy as sa
from alembic import op

from comfyrelay.store.types import JsonText

revision = "tenant_0002"
down_revision = "tenant_0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("batches", sa.Column("held", JsonText(), nullable=True))
