"""What administrators look at: samples, versions of workflows, logs of workers, findings; and what they decide."""

import sqlalchemy as sa
from alembic import op

from comfyrelay.store.types import JsonText, UtcTime

revision = "central_0012"
down_revision = "central_0011"
branch_labels = None
depends_on = None

KEPT = "graph_path, properties, output_node_id, output_extension, output_mime_type"


def upgrade() -> None:
    _make_samples()
    _make_versions()
    op.create_table(
        "worker_logs",
        sa.Column("worker_id", sa.Text(), nullable=False),
        sa.Column("lines", JsonText(), nullable=False),
        sa.Column("received_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["worker_id"], ["workers.worker_id"], name=op.f("fk_worker_logs_worker_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("worker_id", name=op.f("pk_worker_logs")),
    )
    op.create_table(
        "reconcile_runs",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("started_at", UtcTime(), nullable=False),
        sa.Column("ended_at", UtcTime(), nullable=True),
        sa.Column("jobs", sa.BigInteger(), nullable=True),
        sa.Column("findings", JsonText(), nullable=True),
        sa.Column("count", sa.Integer(), nullable=True),
        sa.Column("shards_down", JsonText(), nullable=True),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reconcile_runs")),
    )
    op.add_column("workers", sa.Column("warm_hashes", JsonText(), nullable=True))
    op.add_column("tenants", sa.Column("max_active_jobs", sa.Integer(), nullable=True))
    op.add_column("users", sa.Column("disabled_at", UtcTime(), nullable=True))
    op.create_index(
        "ix_users_admins", "users", ["id"], postgresql_where=sa.text("is_admin"), sqlite_where=sa.text("is_admin")
    )
    op.add_column("ai_job_dispatches", sa.Column("only_worker", sa.Text(), nullable=True))
    is_pinned = sa.text("status = 'queued' AND only_worker IS NOT NULL")
    op.create_index(
        "ix_ai_job_dispatches_only_worker",
        "ai_job_dispatches",
        ["only_worker"],
        postgresql_where=is_pinned,
        sqlite_where=is_pinned,
    )


def _make_samples() -> None:
    counts = ("begun", "done", "failed", "tokens")
    op.create_table(
        "samples",
        sa.Column("minute", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("waiting", sa.Integer(), nullable=True),
        sa.Column("oldest_wait_seconds", sa.Float(), nullable=True),
        sa.Column("busy", sa.Integer(), nullable=True),
        sa.Column("slots", sa.Integer(), nullable=True),
        sa.Column("workers", sa.Integer(), nullable=True),
        *(sa.Column(name, sa.BigInteger(), server_default=sa.text("0"), nullable=False) for name in counts),
        sa.Column("waited_seconds", sa.Float(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("minute", name=op.f("pk_samples")),
    )


def _make_versions() -> None:
    """What there is now is the first version of each."""
    op.create_table(
        "workflow_versions",
        sa.Column("workflow_id", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("graph_path", sa.Text(), nullable=False),
        sa.Column("properties", JsonText(), nullable=False),
        sa.Column("output_node_id", sa.Text(), nullable=True),
        sa.Column("output_extension", sa.Text(), nullable=False),
        sa.Column("output_mime_type", sa.Text(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["workflow_id"], ["workflows.id"], name=op.f("fk_workflow_versions_workflow_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("workflow_id", "number", name=op.f("pk_workflow_versions")),
    )
    op.execute(
        f"INSERT INTO workflow_versions (workflow_id, number, created_at, {KEPT}) "
        f"SELECT id, 1, updated_at, {KEPT} FROM workflows WHERE deleted_at IS NULL AND waiting IS NULL"
    )
