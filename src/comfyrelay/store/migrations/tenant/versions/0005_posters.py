"""What was found in a file, and what is shown in its place."""

import sqlalchemy as sa
from alembic import op

from comfyrelay.store.types import UtcTime

revision = "tenant_0005"
down_revision = "tenant_0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name, type_ in (("width", sa.Integer()), ("height", sa.Integer()), ("seconds", sa.Double())):
        op.add_column("files", sa.Column(name, type_))
    for name in ("poster", "preview"):
        op.add_column("files", sa.Column(name, sa.Text()))
    op.add_column("files", sa.Column("draw_due_at", UtcTime()))
    where = sa.text("draw_due_at IS NOT NULL")
    op.create_index("ix_files_undrawn", "files", ["draw_due_at"], postgresql_where=where, sqlite_where=where)
