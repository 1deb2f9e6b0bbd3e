"""What a worker had, by an index; and the providers that it serves apart from all else that it says of itself."""

import sqlalchemy as sa
from alembic import op

from comfyrelay.store.types import JsonText

revision = "central_0015"
down_revision = "central_0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        op.f("ix_dispatch_leases_worker_id_dispatch_id"), "dispatch_leases", ["worker_id", "dispatch_id"], unique=False
    )
    op.add_column("workers", sa.Column("providers", JsonText()))
    is_postgres = op.get_bind().dialect.name == "postgresql"
    said = "capabilities -> 'providers'" if is_postgres else "json_extract(capabilities, '$.providers')"
    kind = "json_typeof(capabilities -> 'providers')" if is_postgres else "json_type(capabilities, '$.providers')"
    op.execute(f"UPDATE workers SET providers = {said} WHERE {kind} = 'array'")
