"""Create the central schema."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from comfyrelay.store.types import JsonText, UtcTime

revision = "central_0001"
down_revision = None

# SQLite assigns row ids automatically only to INTEGER PRIMARY KEY.
BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

# The database clock. SQLite connections register a Python function of the same name.
RELAY_NOW = """
CREATE FUNCTION relay_now(seconds double precision) RETURNS timestamptz
LANGUAGE sql STABLE AS $$ SELECT now() + make_interval(secs => seconds) $$
"""

# Leasing a dispatch and ending the lease add an entry to each of these indexes. Half-empty pages take it without a
# search for dead entries.
HALF_FULL_INDEXES = (
    "pk_ai_job_dispatches",
    "uq_ai_job_dispatches_tenant_id_tenant_job_id",
    "ix_ai_job_dispatches_batch",
)


def upgrade() -> None:
    _create_accounts()
    _create_catalogue()
    _create_workers()
    _create_scheduling()
    _create_dispatches()
    _create_queue_history()
    _create_autoscaling()
    _create_operations()
    if op.get_bind().dialect.name == "postgresql":
        op.execute(RELAY_NOW)
        for index in HALF_FULL_INDEXES:
            op.execute(f"ALTER INDEX {index} SET (fillfactor = 50)")


def _create_accounts() -> None:
    op.create_table(
        "tenants",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("shard", sa.Text(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("max_wait_seconds", sa.Integer()),
        sa.Column("max_active_jobs", sa.Integer()),
        sa.Column("max_stored_bytes", sa.BigInteger()),
        sa.Column("max_stored_files", sa.Integer()),
        sa.Column("may_add_workflows", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("queue_paused_at", UtcTime()),
        sa.Column("deleted_at", UtcTime()),
        sa.Column("erased_at", UtcTime()),
    )
    _create_partial_index(
        "ix_tenants_to_erase", "tenants", ["id"], where="deleted_at IS NOT NULL AND erased_at IS NULL"
    )
    _create_partial_index("ix_tenants_queue_paused", "tenants", ["id"], where="queue_paused_at IS NOT NULL")
    op.create_table(
        "users",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("tenant_id", sa.Text(), sa.ForeignKey("tenants.id"), nullable=False, unique=True),
        sa.Column("email", sa.Text(), nullable=False, unique=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("password_hash", sa.Text()),
        sa.Column("is_admin", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("disabled_at", UtcTime()),
        sa.Column("email_verified_at", UtcTime()),
    )
    _create_partial_index("ix_users_admins", "users", ["id"], where="is_admin")
    op.create_table(
        "api_tokens",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("user_id", sa.Text(), sa.ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("token_hash", sa.Text(), nullable=False, unique=True),
        sa.Column("scope", sa.Text()),
        sa.Column("parent_id", sa.Text()),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("expires_at", UtcTime()),
        sa.Column("revoked_at", UtcTime()),
        sa.CheckConstraint("scope IS NULL OR scope = 'comfyui'", name=op.f("ck_api_tokens_scope")),
    )
    op.create_index("ix_api_tokens_user_id", "api_tokens", ["user_id"])
    op.create_table(
        "account_links",
        sa.Column("token_hash", sa.Text(), primary_key=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), sa.ForeignKey("users.id", ondelete="CASCADE")),
        sa.Column("email", sa.Text()),
        sa.Column("name", sa.Text()),
        sa.Column("created_by", sa.Text()),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("expires_at", UtcTime(), nullable=False),
        sa.Column("used_at", UtcTime()),
        sa.CheckConstraint("kind IN ('email', 'reset', 'setup', 'sign_up')", name=op.f("ck_account_links_kind")),
    )
    op.create_index("ix_account_links_user_id", "account_links", ["user_id"])
    _create_partial_index("ix_account_links_email", "account_links", ["email"], where="email IS NOT NULL")
    op.create_table(
        "mails",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("recipient", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("body", sa.Text()),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("due_at", UtcTime()),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("last_error", sa.Text()),
    )
    _create_partial_index("ix_mails_due", "mails", ["due_at"], where="due_at IS NOT NULL")
    op.create_table(
        "payment_events",
        sa.Column("provider_event_id", sa.Text(), primary_key=True),
        sa.Column("tenant_id", sa.Text(), sa.ForeignKey("tenants.id"), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.Column("currency", sa.Text()),
        sa.Column("refund_of", sa.Text()),
        sa.Column("is_refused", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
    )
    _create_partial_index("ix_payment_events_refund_of", "payment_events", ["refund_of"], where="refund_of IS NOT NULL")


def _create_catalogue() -> None:
    op.create_table(
        "workflows",
        sa.Column("id", BIG_ID, primary_key=True),
        sa.Column("slug", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), sa.ForeignKey("tenants.id")),
        sa.Column("added_as", sa.Text()),
        sa.Column("kind", sa.Text(), server_default="graph", nullable=False),
        sa.Column("provider", sa.Text(), server_default="self_hosted", nullable=False),
        sa.Column("may_burst", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("self_hosted_micros_per_second", sa.BigInteger()),
        sa.Column("cloud_micros_per_second", sa.BigInteger()),
        sa.Column("burst_micros_per_hour", sa.BigInteger()),
        sa.Column("graph_path", sa.Text(), nullable=False),
        sa.Column("properties", JsonText(), nullable=False),
        sa.Column("output_node_id", sa.Text()),
        sa.Column("output_extension", sa.Text(), nullable=False),
        sa.Column("output_mime_type", sa.Text(), nullable=False),
        sa.Column("is_active", sa.Boolean(), server_default=sa.true(), nullable=False),
        sa.Column("keep_loaded", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("is_unlisted", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("waiting", JsonText()),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("updated_at", UtcTime(), nullable=False),
        sa.Column("deleted_at", UtcTime()),
        sa.CheckConstraint("kind IN ('graph', 'script')", name=op.f("ck_workflows_kind")),
        sa.CheckConstraint("provider IN ('self_hosted', 'cloud')", name=op.f("ck_workflows_provider")),
        sqlite_autoincrement=True,
    )
    _create_partial_index("ix_workflows_unlisted", "workflows", ["id"], where="is_unlisted AND deleted_at IS NULL")
    _create_partial_index(
        "ix_workflows_waiting", "workflows", ["id"], where="waiting IS NOT NULL AND deleted_at IS NULL"
    )
    _create_partial_index("uq_workflows_slug", "workflows", ["slug"], where="deleted_at IS NULL", unique=True)
    op.create_table(
        "workflow_versions",
        sa.Column("workflow_id", sa.BigInteger(), sa.ForeignKey("workflows.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("number", sa.Integer(), primary_key=True),
        sa.Column("graph_path", sa.Text(), nullable=False),
        sa.Column("properties", JsonText(), nullable=False),
        sa.Column("output_node_id", sa.Text()),
        sa.Column("output_extension", sa.Text(), nullable=False),
        sa.Column("output_mime_type", sa.Text(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
    )
    op.create_table(
        "effects",
        sa.Column("id", BIG_ID, primary_key=True),
        sa.Column("slug", sa.Text(), nullable=False, unique=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("workflow_id", sa.BigInteger(), sa.ForeignKey("workflows.id"), nullable=False),
        sa.Column("property_overrides", JsonText(), nullable=False),
        sa.Column("asset_hashes", JsonText(), nullable=False),
        sa.Column("credits_cost", sa.BigInteger(), nullable=False),
        sa.Column("price_formula", sa.Text()),
        sa.Column("max_credits_cost", sa.BigInteger()),
        sa.Column("is_active", sa.Boolean(), server_default=sa.true(), nullable=False),
        sa.Column("last_processing_time_seconds", sa.Float()),
        sa.Column("max_wait_seconds", sa.Integer()),
        sa.Column("max_run_seconds", sa.Integer(), server_default=sa.text("1800"), nullable=False),
        sa.Column("description", sa.Text()),
        sa.Column("category", sa.Text()),
        sa.Column("position", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("preview_path", sa.Text()),
        sa.Column("before_path", sa.Text()),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("updated_at", UtcTime(), nullable=False),
        sa.CheckConstraint("credits_cost >= 0", name=op.f("ck_effects_credits_cost")),
        sa.CheckConstraint(
            "(price_formula IS NULL) = (max_credits_cost IS NULL)", name=op.f("ck_effects_formula_with_maximum")
        ),
        sa.CheckConstraint("max_credits_cost >= credits_cost", name=op.f("ck_effects_max_credits_cost")),
        sa.CheckConstraint("max_run_seconds >= 1", name=op.f("ck_effects_max_run_seconds")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_effects_workflow_id", "effects", ["workflow_id"])


def _create_workers() -> None:
    op.create_table(
        "fleets",
        sa.Column("id", BIG_ID, primary_key=True),
        sa.Column("slug", sa.Text(), nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("max_workers", sa.Integer()),
        sa.Column("node_definitions_hash", sa.Text()),
        sa.Column("machines", JsonText()),
        sa.Column("autoscaling", JsonText()),
        sa.Column("launches_reset_at", UtcTime()),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.UniqueConstraint("stage", "slug", name=op.f("uq_fleets_stage_slug")),
        sa.CheckConstraint("stage IN ('staging', 'production')", name=op.f("ck_fleets_stage")),
    )
    op.create_table(
        "workflow_fleets",
        sa.Column("fleet_id", sa.BigInteger(), sa.ForeignKey("fleets.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("workflow_id", sa.BigInteger(), sa.ForeignKey("workflows.id", ondelete="CASCADE"), primary_key=True),
    )
    op.create_table(
        "workers",
        sa.Column("worker_id", sa.Text(), primary_key=True),
        sa.Column("fleet_id", sa.BigInteger(), sa.ForeignKey("fleets.id"), nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("display_name", sa.Text()),
        sa.Column("token_hash", sa.Text(), unique=True),
        sa.Column("registration_key_hash", sa.Text()),
        sa.Column("protocol", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("version", sa.Text()),
        sa.Column("capabilities", JsonText(), nullable=False),
        sa.Column("providers", JsonText()),
        sa.Column("capability_summary", JsonText()),
        sa.Column("node_definitions_hash", sa.Text()),
        sa.Column("devices", JsonText()),
        sa.Column("warm_hashes", JsonText()),
        sa.Column("memory_bytes", sa.BigInteger()),
        sa.Column("narrowed_to", JsonText()),
        sa.Column("max_concurrency", sa.Integer(), nullable=False),
        sa.Column("current_load", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("is_approved", sa.Boolean(), server_default=sa.true(), nullable=False),
        sa.Column("is_draining", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("registration_source", sa.Text(), server_default="fleet", nullable=False),
        sa.Column("capacity_type", sa.Text()),
        sa.Column("instance_type", sa.Text()),
        sa.Column("unavailable_since", UtcTime()),
        sa.Column("unavailable_reason", sa.Text()),
        sa.Column("last_seen_at", UtcTime(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.CheckConstraint("max_concurrency >= 1", name=op.f("ck_workers_max_concurrency")),
        sa.CheckConstraint("registration_source IN ('fleet', 'desk')", name=op.f("ck_workers_registration_source")),
        sa.CheckConstraint("stage IN ('staging', 'production')", name=op.f("ck_workers_stage")),
    )
    op.create_index("ix_workers_fleet_id", "workers", ["fleet_id"])
    op.create_table(
        "worker_workflows",
        sa.Column("worker_id", sa.Text(), sa.ForeignKey("workers.worker_id", ondelete="CASCADE"), primary_key=True),
        sa.Column("workflow_id", sa.BigInteger(), sa.ForeignKey("workflows.id", ondelete="CASCADE"), primary_key=True),
    )
    op.create_index("ix_worker_workflows_workflow_id", "worker_workflows", ["workflow_id"])
    op.create_table(
        "worker_logs",
        sa.Column("worker_id", sa.Text(), sa.ForeignKey("workers.worker_id", ondelete="CASCADE"), primary_key=True),
        sa.Column("lines", JsonText(), nullable=False),
        sa.Column("received_at", UtcTime(), nullable=False),
    )
    op.create_table(
        "instance_identities",
        sa.Column("instance_id", sa.Text(), primary_key=True),
        sa.Column("account_id", sa.Text(), nullable=False),
        sa.Column("registration_key_hash", sa.Text(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
    )


def _create_scheduling() -> None:
    op.create_table(
        "workflow_blocks",
        sa.Column("worker_id", sa.Text(), sa.ForeignKey("workers.worker_id", ondelete="CASCADE"), primary_key=True),
        sa.Column("workflow_hash", sa.Text(), primary_key=True),
        sa.Column("failure_count", sa.Integer(), nullable=False),
        sa.Column("blocked_until", UtcTime()),
        sa.Column("reason", sa.Text()),
        sa.Column("is_out_of_memory", sa.Boolean(), server_default=sa.false(), nullable=False),
    )
    op.create_table(
        "workflow_requirements",
        sa.Column("workflow_hash", sa.Text(), primary_key=True),
        sa.Column("node_types", JsonText(), nullable=False),
        sa.Column("models", JsonText(), nullable=False),
        sa.Column("used_at", UtcTime(), nullable=False),
    )
    op.create_table(
        "worker_missing_requirements",
        sa.Column("worker_id", sa.Text(), primary_key=True),
        sa.Column("workflow_hash", sa.Text(), primary_key=True),
        sa.Column("node_types", JsonText(), nullable=False),
        sa.Column("models", JsonText(), nullable=False),
        sa.Column("unreported", JsonText(), nullable=False),
        sa.ForeignKeyConstraint(
            ["worker_id"],
            ["workers.worker_id"],
            name=op.f("fk_worker_missing_requirements_worker_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["workflow_hash"],
            ["workflow_requirements.workflow_hash"],
            name=op.f("fk_worker_missing_requirements_workflow_hash"),
            ondelete="CASCADE",
        ),
    )
    op.create_index("ix_worker_missing_requirements_workflow_hash", "worker_missing_requirements", ["workflow_hash"])
    op.create_table(
        "workflow_memory",
        sa.Column("workflow_id", sa.BigInteger(), sa.ForeignKey("workflows.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("workflow_hash", sa.Text(), primary_key=True),
        sa.Column("ran_out_bytes", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", UtcTime(), nullable=False),
    )
    op.create_table(
        "workflow_durations",
        sa.Column("workflow_id", sa.BigInteger(), sa.ForeignKey("workflows.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("effect_id", sa.BigInteger(), primary_key=True),
        sa.Column("jobs", sa.BigInteger(), nullable=False),
        sa.Column("mean_seconds", sa.Float(), nullable=False),
        sa.Column("updated_at", UtcTime(), nullable=False),
    )


def _create_dispatches() -> None:
    op.create_table(
        "ai_job_dispatches",
        sa.Column("id", BIG_ID, primary_key=True),
        sa.Column("workflow_id", sa.BigInteger(), sa.ForeignKey("workflows.id"), nullable=False),
        sa.Column("effect_id", sa.BigInteger()),
        sa.Column("rank", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("version", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("available_at", UtcTime(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("leased_at", UtcTime()),
        sa.Column("lease_expires_at", UtcTime()),
        sa.Column("finished_at", UtcTime()),
        sa.Column("cancel_requested_at", UtcTime()),
        sa.Column("pause_requested_at", UtcTime()),
        sa.Column("release_requested_at", UtcTime()),
        sa.Column("passed_over_at", UtcTime()),
        sa.Column("resumed_at", UtcTime()),
        sa.Column("self_hosted_micros_per_second", sa.BigInteger()),
        sa.Column("cloud_micros_per_second", sa.BigInteger()),
        sa.Column("cost_micros", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("expected_cost_micros", sa.BigInteger()),
        sa.Column("duration_seconds", sa.Float()),
        sa.Column("expected_seconds", sa.Float()),
        sa.Column("max_wait_seconds", sa.Integer()),
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
        sa.Column("batch_id", sa.Text()),
        sa.Column("workflow_hash", sa.Text(), nullable=False),
        sa.Column("only_worker", sa.Text()),
        sa.Column("worker_id", sa.Text()),
        sa.Column("lease_token", sa.Text()),
        sa.Column("lease_request_id", sa.Text()),
        sa.Column("pause_mode", sa.Text()),
        sa.Column("last_error", sa.Text()),
        sa.Column("ran_out_on", sa.Text()),
        sa.Column("progress", JsonText()),
        sa.UniqueConstraint("tenant_id", "tenant_job_id", name=op.f("uq_ai_job_dispatches_tenant_id_tenant_job_id")),
        sa.CheckConstraint(
            "(finished_at IS NOT NULL) = (status IN ('completed', 'failed', 'canceled'))",
            name=op.f("ck_ai_job_dispatches_finished_iff_terminal"),
        ),
        sa.CheckConstraint(
            "(status = 'leased') = (lease_token IS NOT NULL) AND (status = 'leased') = (lease_expires_at IS NOT NULL) AND (status = 'leased') = (worker_id IS NOT NULL) AND (status = 'leased') = (leased_at IS NOT NULL)",
            name=op.f("ck_ai_job_dispatches_lease_iff_leased"),
        ),
        sa.CheckConstraint(
            "attempts >= 0 AND max_attempts >= 1 AND epoch >= 0 AND version >= 0",
            name=op.f("ck_ai_job_dispatches_counts"),
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
        postgresql_with={"fillfactor": "50"},
    )
    _create_partial_index(
        "ix_ai_job_dispatches_batch",
        "ai_job_dispatches",
        ["batch_id", "finished_at"],
        where="batch_id IS NOT NULL",
    )
    _create_partial_index(
        "ix_ai_job_dispatches_exhausted",
        "ai_job_dispatches",
        ["id"],
        where="status IN ('queued', 'paused') AND attempts >= max_attempts",
    )
    _create_partial_index(
        "ix_ai_job_dispatches_failed",
        "ai_job_dispatches",
        ["finished_at"],
        where="status = 'failed' AND finished_at IS NOT NULL",
    )
    _create_partial_index("ix_ai_job_dispatches_leased", "ai_job_dispatches", ["worker_id"], where="status = 'leased'")
    _create_partial_index(
        "ix_ai_job_dispatches_only_worker",
        "ai_job_dispatches",
        ["only_worker"],
        where="status = 'queued' AND only_worker IS NOT NULL",
    )
    _create_partial_index(
        "ix_ai_job_dispatches_ran_out",
        "ai_job_dispatches",
        ["id"],
        where="status = 'queued' AND ran_out_on IS NOT NULL",
    )
    op.create_index(
        "ix_ai_job_dispatches_prefetched",
        "ai_job_dispatches",
        ["id"],
        postgresql_where=sa.text("status = 'leased' AND is_prefetch"),
        sqlite_where=sa.text("status = 'leased' AND is_prefetch = 1"),
    )
    _create_partial_index(
        "ix_ai_job_dispatches_queued",
        "ai_job_dispatches",
        ["stage", "provider", "workflow_id", sa.text("priority DESC"), "rank", "id"],
        where="status = 'queued'",
    )
    _create_partial_index(
        "ix_ai_job_dispatches_stopped",
        "ai_job_dispatches",
        ["status", "id"],
        where="status IN ('failed', 'canceled', 'paused')",
    )
    _create_partial_index(
        "ix_ai_job_dispatches_waiting_tenant",
        "ai_job_dispatches",
        ["tenant_id", "priority", "rank"],
        where="status IN ('queued', 'paused')",
    )


def _create_queue_history() -> None:
    op.create_table(
        "dispatch_leases",
        sa.Column("lease_token", sa.Text(), primary_key=True),
        sa.Column("dispatch_id", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("worker_id", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text()),
        sa.Column("leased_at", UtcTime(), nullable=False),
        sa.Column("ended_at", UtcTime()),
        sa.Column("outcome", sa.Text()),
        sa.Column("ended_by", sa.Text()),
        sa.Column("reason", sa.Text()),
        sa.Column("status_after", sa.Text()),
        sa.Column("cost", sa.Float()),
        sa.UniqueConstraint("dispatch_id", "epoch", name=op.f("uq_dispatch_leases_dispatch_id_epoch")),
        postgresql_with={"fillfactor": "50"},
    )
    op.create_index("ix_dispatch_leases_worker_id_dispatch_id", "dispatch_leases", ["worker_id", "dispatch_id"])
    _create_partial_index(
        "uq_dispatch_leases_request",
        "dispatch_leases",
        ["worker_id", "request_id"],
        where="request_id IS NOT NULL",
        unique=True,
    )
    op.create_table(
        "worker_audit_logs",
        sa.Column("id", BIG_ID, primary_key=True),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("dispatch_id", sa.BigInteger()),
        sa.Column("worker_id", sa.Text(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("data", JsonText()),
    )
    _create_partial_index(
        "ix_worker_audit_logs_decisions",
        "worker_audit_logs",
        ["worker_id", "id"],
        where="event IN ('approve', 'revoke')",
    )
    _create_partial_index(
        "ix_worker_audit_logs_dispatch", "worker_audit_logs", ["dispatch_id", "id"], where="dispatch_id IS NOT NULL"
    )
    op.create_index("ix_worker_audit_logs_worker_id_id", "worker_audit_logs", ["worker_id", "id"])
    op.create_table(
        "outbox",
        sa.Column("id", BIG_ID, primary_key=True),
        sa.Column("shard", sa.Text(), nullable=False),
        sa.Column("updates", JsonText(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_outbox_shard_id", "outbox", ["shard", "id"])


def _create_autoscaling() -> None:
    op.create_table(
        "machines",
        sa.Column("key", sa.Text(), primary_key=True),
        sa.Column("fleet_id", sa.BigInteger(), sa.ForeignKey("fleets.id", ondelete="CASCADE"), nullable=False),
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
    )
    op.create_index("ix_machines_fleet_id_ordered_at", "machines", ["fleet_id", "ordered_at"])
    _create_partial_index("ix_machines_present", "machines", ["fleet_id"], where="ended_at IS NULL")
    _create_partial_index("ix_machines_worker", "machines", ["worker_id"], where="worker_id IS NOT NULL")
    op.create_table(
        "autoscaling_decisions",
        sa.Column("id", BIG_ID, primary_key=True),
        sa.Column("fleet_id", sa.BigInteger(), sa.ForeignKey("fleets.id", ondelete="CASCADE"), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("policy", sa.Text(), nullable=False),
        sa.Column("desired", sa.Integer(), nullable=False),
        sa.Column("launch", JsonText(), nullable=False),
        sa.Column("end", JsonText(), nullable=False),
        sa.Column("outcome", JsonText(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("seen", JsonText(), nullable=False),
    )
    op.create_index("ix_autoscaling_decisions_fleet_id_id", "autoscaling_decisions", ["fleet_id", "id"])
    op.create_table(
        "bursts",
        sa.Column("id", BIG_ID, primary_key=True),
        sa.Column("dispatch_id", sa.BigInteger(), nullable=False, unique=True),
        sa.Column("workflow_id", sa.BigInteger(), nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("ended_at", UtcTime()),
        sa.Column("expected_cost_micros", sa.BigInteger(), nullable=False),
        sa.Column("cost_micros", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("back_reason", sa.Text()),
        sa.Column("seen", JsonText(), nullable=False),
        sa.CheckConstraint("stage IN ('staging', 'production')", name=op.f("ck_bursts_stage")),
    )
    op.create_index("ix_bursts_ended_at", "bursts", ["ended_at"])
    op.create_table(
        "usage",
        sa.Column("day", sa.Text(), primary_key=True),
        sa.Column("fleet_id", sa.BigInteger(), sa.ForeignKey("fleets.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("workflow_id", sa.BigInteger(), primary_key=True),
        sa.Column("tenant_id", sa.Text(), primary_key=True),
        sa.Column("effect_id", sa.BigInteger(), primary_key=True),
        sa.Column("jobs", sa.BigInteger(), nullable=False),
        sa.Column("busy_seconds", sa.Float(), nullable=False),
        sa.Column("lost_seconds", sa.Float(), nullable=False),
        sa.Column("unpriced_seconds", sa.Float(), nullable=False),
        sa.Column("cost", sa.Float(), nullable=False),
    )


def _create_operations() -> None:
    op.create_table(
        "alert_states",
        sa.Column("rule", sa.Text(), primary_key=True),
        sa.Column("last_sent_at", UtcTime()),
        sa.Column("told", JsonText(), nullable=False),
        sa.Column("seen", JsonText(), nullable=False),
    )
    op.create_table(
        "audit_log",
        sa.Column("id", BIG_ID, primary_key=True),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("actor_id", sa.Text()),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("address", sa.Text()),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("before", JsonText()),
        sa.Column("after", JsonText()),
        sa.Column("is_done", sa.Boolean(), nullable=False),
    )
    op.create_index("ix_audit_log_subject_id", "audit_log", ["subject", "id"])
    op.create_index("ix_audit_log_actor_id_id", "audit_log", ["actor_id", "id"])
    op.create_table(
        "leaders",
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", UtcTime(), nullable=False),
    )
    op.create_table(
        "cursors",
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("position", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "samples",
        sa.Column("minute", sa.BigInteger(), autoincrement=False, primary_key=True),
        sa.Column("waiting", sa.Integer()),
        sa.Column("oldest_wait_seconds", sa.Float()),
        sa.Column("busy", sa.Integer()),
        sa.Column("slots", sa.Integer()),
        sa.Column("workers", sa.Integer()),
        sa.Column("begun", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("waited_seconds", sa.Float(), server_default=sa.text("0"), nullable=False),
        sa.Column("done", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("failed", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("tokens", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
    )
    op.create_table(
        "reconcile_runs",
        sa.Column("id", BIG_ID, primary_key=True),
        sa.Column("started_at", UtcTime(), nullable=False),
        sa.Column("ended_at", UtcTime()),
        sa.Column("jobs", sa.BigInteger()),
        sa.Column("findings", JsonText()),
        sa.Column("count", sa.Integer()),
        sa.Column("shards_down", JsonText()),
        sa.Column("problem", sa.Text()),
    )


def _create_partial_index(
    name: str, table: str, columns: Sequence[str | sa.TextClause], *, where: str, unique: bool = False
) -> None:
    condition = sa.text(where)
    op.create_index(name, table, columns, unique=unique, postgresql_where=condition, sqlite_where=condition)
