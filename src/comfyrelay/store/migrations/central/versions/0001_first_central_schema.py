"""The first central schema."""

import sqlalchemy as sa
from alembic import op

from comfyrelay.store.types import JsonText, UtcTime

revision = "central_0001"
down_revision = None
branch_labels = None
depends_on = None

# The one clock. SQLite's connections bring a function of the same name.
RELAY_NOW = """
CREATE FUNCTION relay_now(seconds double precision) RETURNS timestamptz
LANGUAGE sql STABLE AS $$ SELECT now() + make_interval(secs => seconds) $$
"""


def upgrade() -> None:
    op.create_table(
        "fleets",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("slug", sa.Text(), nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("max_workers", sa.Integer(), nullable=True),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.CheckConstraint("stage IN ('staging', 'production')", name=op.f("ck_fleets_stage")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_fleets")),
        sa.UniqueConstraint("stage", "slug", name=op.f("uq_fleets_stage_slug")),
    )
    op.create_table(
        "outbox",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("shard", sa.Text(), nullable=False),
        sa.Column("updates", JsonText(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_outbox")),
    )
    op.create_index(op.f("ix_outbox_shard_id"), "outbox", ["shard", "id"], unique=False)
    op.create_table(
        "tenants",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("shard", sa.Text(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tenants")),
    )
    op.create_table(
        "worker_audit_logs",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("dispatch_id", sa.BigInteger(), nullable=True),
        sa.Column("worker_id", sa.Text(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("data", JsonText(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_worker_audit_logs")),
    )
    op.create_index(op.f("ix_worker_audit_logs_worker_id_id"), "worker_audit_logs", ["worker_id", "id"], unique=False)
    op.create_table(
        "payment_events",
        sa.Column("provider_event_id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.Column("currency", sa.Text(), nullable=True),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_payment_events_tenant_id")),
        sa.PrimaryKeyConstraint("provider_event_id", name=op.f("pk_payment_events")),
    )
    op.create_table(
        "users",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("email", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("password_hash", sa.Text(), nullable=True),
        sa.Column("is_admin", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_users_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_users")),
        sa.UniqueConstraint("email", name=op.f("uq_users_email")),
        sa.UniqueConstraint("tenant_id", name=op.f("uq_users_tenant_id")),
    )
    op.create_table(
        "workers",
        sa.Column("worker_id", sa.Text(), nullable=False),
        sa.Column("fleet_id", sa.BigInteger(), nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("display_name", sa.Text(), nullable=True),
        sa.Column("token_hash", sa.Text(), nullable=True),
        sa.Column("capabilities", JsonText(), nullable=False),
        sa.Column("narrowed_to", JsonText(), nullable=True),
        sa.Column("max_concurrency", sa.Integer(), nullable=False),
        sa.Column("current_load", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("is_approved", sa.Boolean(), server_default=sa.true(), nullable=False),
        sa.Column("is_draining", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("registration_source", sa.Text(), server_default="fleet", nullable=False),
        sa.Column("capacity_type", sa.Text(), nullable=True),
        sa.Column("instance_type", sa.Text(), nullable=True),
        sa.Column("last_seen_at", UtcTime(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.CheckConstraint("stage IN ('staging', 'production')", name=op.f("ck_workers_stage")),
        sa.CheckConstraint("registration_source IN ('fleet', 'desk')", name=op.f("ck_workers_registration_source")),
        sa.CheckConstraint("max_concurrency >= 1", name=op.f("ck_workers_max_concurrency")),
        sa.ForeignKeyConstraint(["fleet_id"], ["fleets.id"], name=op.f("fk_workers_fleet_id")),
        sa.PrimaryKeyConstraint("worker_id", name=op.f("pk_workers")),
        sa.UniqueConstraint("token_hash", name=op.f("uq_workers_token_hash")),
    )
    op.create_index(op.f("ix_workers_fleet_id"), "workers", ["fleet_id"], unique=False)
    op.create_table(
        "workflows",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("slug", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=True),
        sa.Column("kind", sa.Text(), server_default="graph", nullable=False),
        sa.Column("provider", sa.Text(), server_default="self_hosted", nullable=False),
        sa.Column("graph_path", sa.Text(), nullable=False),
        sa.Column("properties", JsonText(), nullable=False),
        sa.Column("output_node_id", sa.Text(), nullable=True),
        sa.Column("output_extension", sa.Text(), nullable=False),
        sa.Column("output_mime_type", sa.Text(), nullable=False),
        sa.Column("is_active", sa.Boolean(), server_default=sa.true(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("updated_at", UtcTime(), nullable=False),
        sa.Column("deleted_at", UtcTime(), nullable=True),
        sa.CheckConstraint("kind IN ('graph', 'script')", name=op.f("ck_workflows_kind")),
        sa.CheckConstraint("provider IN ('self_hosted', 'cloud')", name=op.f("ck_workflows_provider")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_workflows_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workflows")),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "uq_workflows_slug",
        "workflows",
        ["slug"],
        unique=True,
        postgresql_where=sa.text("deleted_at IS NULL"),
        sqlite_where=sa.text("deleted_at IS NULL"),
    )
    op.create_table(
        "ai_job_dispatches",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("workflow_id", sa.BigInteger(), nullable=False),
        sa.Column("effect_id", sa.BigInteger(), nullable=True),
        sa.Column("rank", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("version", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("available_at", UtcTime(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("leased_at", UtcTime(), nullable=True),
        sa.Column("lease_expires_at", UtcTime(), nullable=True),
        sa.Column("finished_at", UtcTime(), nullable=True),
        sa.Column("cancel_requested_at", UtcTime(), nullable=True),
        sa.Column("pause_requested_at", UtcTime(), nullable=True),
        sa.Column("release_requested_at", UtcTime(), nullable=True),
        sa.Column("passed_over_at", UtcTime(), nullable=True),
        sa.Column("duration_seconds", sa.Float(), nullable=True),
        sa.Column("priority", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("deferrals", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("is_prefetch", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("status", sa.Text(), server_default="queued", nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("tenant_job_id", sa.Text(), nullable=False),
        sa.Column("shard", sa.Text(), nullable=False),
        sa.Column("batch_id", sa.Text(), nullable=True),
        sa.Column("workflow_hash", sa.Text(), nullable=False),
        sa.Column("worker_id", sa.Text(), nullable=True),
        sa.Column("lease_token", sa.Text(), nullable=True),
        sa.Column("lease_request_id", sa.Text(), nullable=True),
        sa.Column("pause_mode", sa.Text(), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("progress", JsonText(), nullable=True),
        sa.CheckConstraint(
            "(finished_at IS NOT NULL) = (status IN ('completed', 'failed', 'canceled'))",
            name=op.f("ck_ai_job_dispatches_finished_iff_terminal"),
        ),
        sa.CheckConstraint(
            "(status = 'leased') = (lease_token IS NOT NULL) AND (status = 'leased') = (lease_expires_at IS NOT NULL) AND (status = 'leased') = (worker_id IS NOT NULL) AND (status = 'leased') = (leased_at IS NOT NULL)",
            name=op.f("ck_ai_job_dispatches_lease_iff_leased"),
        ),
        sa.CheckConstraint(
            "pause_mode IS NULL OR pause_mode IN ('after', 'now')", name=op.f("ck_ai_job_dispatches_pause_mode")
        ),
        sa.CheckConstraint("provider IN ('self_hosted', 'cloud')", name=op.f("ck_ai_job_dispatches_provider")),
        sa.CheckConstraint("stage IN ('staging', 'production')", name=op.f("ck_ai_job_dispatches_stage")),
        sa.CheckConstraint(
            "status = 'leased' OR (cancel_requested_at IS NULL AND pause_requested_at IS NULL AND release_requested_at IS NULL)",
            name=op.f("ck_ai_job_dispatches_requests_only_while_leased"),
        ),
        sa.CheckConstraint(
            "status IN ('queued', 'leased', 'completed', 'failed', 'canceled', 'paused')",
            name=op.f("ck_ai_job_dispatches_status"),
        ),
        sa.CheckConstraint(
            "attempts >= 0 AND max_attempts >= 1 AND epoch >= 0 AND version >= 0",
            name=op.f("ck_ai_job_dispatches_counts"),
        ),
        sa.ForeignKeyConstraint(["workflow_id"], ["workflows.id"], name=op.f("fk_ai_job_dispatches_workflow_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ai_job_dispatches")),
        sa.UniqueConstraint("tenant_id", "tenant_job_id", name=op.f("uq_ai_job_dispatches_tenant_id_tenant_job_id")),
        postgresql_with={"fillfactor": "50"},
    )
    op.create_index(
        "ix_ai_job_dispatches_batch",
        "ai_job_dispatches",
        ["batch_id"],
        unique=False,
        postgresql_where=sa.text("batch_id IS NOT NULL"),
        sqlite_where=sa.text("batch_id IS NOT NULL"),
    )
    op.create_index(
        "ix_ai_job_dispatches_exhausted",
        "ai_job_dispatches",
        ["id"],
        unique=False,
        postgresql_where=sa.text("status IN ('queued', 'paused') AND attempts >= max_attempts"),
        sqlite_where=sa.text("status IN ('queued', 'paused') AND attempts >= max_attempts"),
    )
    op.create_index(
        "ix_ai_job_dispatches_leased",
        "ai_job_dispatches",
        ["worker_id"],
        unique=False,
        postgresql_where=sa.text("status = 'leased'"),
        sqlite_where=sa.text("status = 'leased'"),
    )
    op.create_index(
        "ix_ai_job_dispatches_prefetched",
        "ai_job_dispatches",
        ["id"],
        unique=False,
        postgresql_where=sa.text("status = 'leased' AND is_prefetch"),
        sqlite_where=sa.text("status = 'leased' AND is_prefetch = 1"),
    )
    op.create_index(
        "ix_ai_job_dispatches_queued",
        "ai_job_dispatches",
        ["stage", "provider", "workflow_id", sa.literal_column("priority DESC"), "rank", "id"],
        unique=False,
        postgresql_where=sa.text("status = 'queued'"),
        sqlite_where=sa.text("status = 'queued'"),
    )
    op.create_index(
        "ix_ai_job_dispatches_set_aside",
        "ai_job_dispatches",
        ["status", "id"],
        unique=False,
        postgresql_where=sa.text("status IN ('failed', 'canceled', 'paused')"),
        sqlite_where=sa.text("status IN ('failed', 'canceled', 'paused')"),
    )
    op.create_index(
        "ix_ai_job_dispatches_waiting_tenant",
        "ai_job_dispatches",
        ["tenant_id", "priority", "rank"],
        unique=False,
        postgresql_where=sa.text("status IN ('queued', 'paused')"),
        sqlite_where=sa.text("status IN ('queued', 'paused')"),
    )
    if op.get_bind().dialect.name == "postgresql":
        # A lease and its end each write a new entry for the row into these. In pages with room for that, they need not
        # be searched for entries of old versions first.
        for index in (
            "pk_ai_job_dispatches",
            "uq_ai_job_dispatches_tenant_id_tenant_job_id",
            "ix_ai_job_dispatches_batch",
        ):
            op.execute(f"ALTER INDEX {index} SET (fillfactor = 50)")
    op.create_table(
        "api_tokens",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("token_hash", sa.Text(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("expires_at", UtcTime(), nullable=True),
        sa.Column("revoked_at", UtcTime(), nullable=True),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_api_tokens_user_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_tokens")),
        sa.UniqueConstraint("token_hash", name=op.f("uq_api_tokens_token_hash")),
    )
    op.create_index(op.f("ix_api_tokens_user_id"), "api_tokens", ["user_id"], unique=False)
    op.create_table(
        "effects",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("slug", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("workflow_id", sa.BigInteger(), nullable=False),
        sa.Column("property_overrides", JsonText(), nullable=False),
        sa.Column("asset_hashes", JsonText(), nullable=False),
        sa.Column("credits_cost", sa.BigInteger(), nullable=False),
        sa.Column("is_active", sa.Boolean(), server_default=sa.true(), nullable=False),
        sa.Column("last_processing_time_seconds", sa.Float(), nullable=True),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("updated_at", UtcTime(), nullable=False),
        sa.CheckConstraint("credits_cost >= 0", name=op.f("ck_effects_credits_cost")),
        sa.ForeignKeyConstraint(["workflow_id"], ["workflows.id"], name=op.f("fk_effects_workflow_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_effects")),
        sa.UniqueConstraint("slug", name=op.f("uq_effects_slug")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_effects_workflow_id"), "effects", ["workflow_id"], unique=False)
    op.create_table(
        "worker_workflows",
        sa.Column("worker_id", sa.Text(), nullable=False),
        sa.Column("workflow_id", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["worker_id"], ["workers.worker_id"], name=op.f("fk_worker_workflows_worker_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["workflow_id"], ["workflows.id"], name=op.f("fk_worker_workflows_workflow_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("worker_id", "workflow_id", name=op.f("pk_worker_workflows")),
    )
    op.create_index(op.f("ix_worker_workflows_workflow_id"), "worker_workflows", ["workflow_id"], unique=False)
    op.create_table(
        "workflow_blocks",
        sa.Column("worker_id", sa.Text(), nullable=False),
        sa.Column("workflow_hash", sa.Text(), nullable=False),
        sa.Column("failure_count", sa.Integer(), nullable=False),
        sa.Column("blocked_until", UtcTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["worker_id"], ["workers.worker_id"], name=op.f("fk_workflow_blocks_worker_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("worker_id", "workflow_hash", name=op.f("pk_workflow_blocks")),
    )
    op.create_table(
        "workflow_fleets",
        sa.Column("fleet_id", sa.BigInteger(), nullable=False),
        sa.Column("workflow_id", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["fleet_id"], ["fleets.id"], name=op.f("fk_workflow_fleets_fleet_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["workflow_id"], ["workflows.id"], name=op.f("fk_workflow_fleets_workflow_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("fleet_id", "workflow_id", name=op.f("pk_workflow_fleets")),
    )
    op.create_table(
        "dispatch_leases",
        sa.Column("lease_token", sa.Text(), nullable=False),
        sa.Column("dispatch_id", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("worker_id", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=True),
        sa.Column("leased_at", UtcTime(), nullable=False),
        sa.Column("ended_at", UtcTime(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("ended_by", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("status_after", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("lease_token", name=op.f("pk_dispatch_leases")),
        sa.UniqueConstraint("dispatch_id", "epoch", name=op.f("uq_dispatch_leases_dispatch_id_epoch")),
        postgresql_with={"fillfactor": "50"},
    )
    op.create_index(
        "uq_dispatch_leases_request",
        "dispatch_leases",
        ["worker_id", "request_id"],
        unique=True,
        postgresql_where=sa.text("request_id IS NOT NULL"),
        sqlite_where=sa.text("request_id IS NOT NULL"),
    )
    if op.get_bind().dialect.name == "postgresql":
        op.execute(RELAY_NOW)
