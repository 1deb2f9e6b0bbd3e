"""The GPUs of each worker, as it told of them last."""

import sqlalchemy as sa
from alembic import op

from comfyrelay.store.types import JsonText

revision = "central_0007"
down_revision = "central_0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("workers", sa.Column("devices", JsonText()))
