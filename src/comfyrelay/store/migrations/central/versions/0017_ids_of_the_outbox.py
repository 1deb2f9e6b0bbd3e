"""An id of the outbox is never used again: what is removed late must not take the row of another with it."""

from alembic import op

revision = "central_0017"
down_revision = "central_0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # PostgreSQL never gives an id twice; SQLite gives the highest again, once its row is gone
    if op.get_bind().dialect.name == "sqlite":
        with op.batch_alter_table("outbox", recreate="always", table_kwargs={"sqlite_autoincrement": True}):
            pass
