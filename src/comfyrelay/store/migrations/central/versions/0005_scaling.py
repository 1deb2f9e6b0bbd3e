"""What a fleet's machines are, which there are, what was decided about them, and what they did."""

import sqlalchemy as sa
from alembic import op

from comfyrelay.store.types import JsonText, UtcTime

revision = "central_0005"
down_revision = "central_0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("machines", "scaling"):
        op.add_column("fleets", sa.Column(name, JsonText()))
    op.create_table(
        "machines",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("fleet_id", sa.BigInteger(), nullable=False),
        sa.Column("provider_id", sa.Text()),
        sa.Column("worker_id", sa.Text()),
        sa.Column("instance_type", sa.Text()),
        sa.Column("price_per_hour", sa.Float()),
        sa.Column("ordered_at", UtcTime(), nullable=False),
        sa.Column("launched_at", UtcTime()),
        sa.Column("registered_at", UtcTime()),
        sa.Column("ending_at", UtcTime()),
        sa.Column("ended_at", UtcTime()),
        sa.Column("reason", sa.Text()),
        sa.ForeignKeyConstraint(["fleet_id"], ["fleets.id"], name=op.f("fk_machines_fleet_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_machines")),
    )
    op.create_index(op.f("ix_machines_fleet_id_ordered_at"), "machines", ["fleet_id", "ordered_at"], unique=False)
    _partial_index("ix_machines_present", "machines", "fleet_id", where="ended_at IS NULL")
    _partial_index("ix_machines_worker", "machines", "worker_id", where="worker_id IS NOT NULL")
    op.create_table(
        "scaling_decisions",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("fleet_id", sa.BigInteger(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("policy", sa.Text(), nullable=False),
        sa.Column("desired", sa.Integer(), nullable=False),
        sa.Column("launch", JsonText(), nullable=False),
        sa.Column("end", JsonText(), nullable=False),
        sa.Column("outcome", JsonText(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("seen", JsonText(), nullable=False),
        sa.ForeignKeyConstraint(
            ["fleet_id"], ["fleets.id"], name=op.f("fk_scaling_decisions_fleet_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_scaling_decisions")),
    )
    op.create_index(op.f("ix_scaling_decisions_fleet_id_id"), "scaling_decisions", ["fleet_id", "id"], unique=False)
    op.create_table(
        "leaders",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", UtcTime(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leaders")),
    )
    op.create_table(
        "workflow_durations",
        sa.Column("workflow_id", sa.BigInteger(), nullable=False),
        sa.Column("effect_id", sa.BigInteger(), nullable=False),
        sa.Column("jobs", sa.BigInteger(), nullable=False),
        sa.Column("mean_seconds", sa.Float(), nullable=False),
        sa.Column("mean_square", sa.Float(), nullable=False),
        sa.Column("updated_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["workflow_id"], ["workflows.id"], name=op.f("fk_workflow_durations_workflow_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("workflow_id", "effect_id", name=op.f("pk_workflow_durations")),
    )
    op.create_table(
        "usage",
        sa.Column("day", sa.Text(), nullable=False),
        sa.Column("fleet_id", sa.BigInteger(), nullable=False),
        sa.Column("workflow_id", sa.BigInteger(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("jobs", sa.BigInteger(), nullable=False),
        sa.Column("busy_seconds", sa.Float(), nullable=False),
        sa.Column("lost_seconds", sa.Float(), nullable=False),
        sa.Column("cost", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["fleet_id"], ["fleets.id"], name=op.f("fk_usage_fleet_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("day", "fleet_id", "workflow_id", "tenant_id", name=op.f("pk_usage")),
    )
    op.add_column("dispatch_leases", sa.Column("cost", sa.Float()))
    op.create_table(
        "instance_identities",
        sa.Column("instance_id", sa.Text(), nullable=False),
        sa.Column("account_id", sa.Text(), nullable=False),
        sa.Column("registration_key_hash", sa.Text(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.PrimaryKeyConstraint("instance_id", name=op.f("pk_instance_identities")),
    )
    op.create_table(
        "cursors",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_cursors")),
    )


def _partial_index(name: str, table: str, column: str, *, where: str) -> None:
    condition = sa.text(where)
    op.create_index(name, table, [column], unique=False, postgresql_where=condition, sqlite_where=condition)
