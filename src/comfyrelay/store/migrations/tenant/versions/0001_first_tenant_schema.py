"""The first tenant schema."""

import sqlalchemy as sa
from alembic import op

from comfyrelay.store.types import JsonText, UtcTime

revision = "tenant_0001"
down_revision = None
branch_labels = None
depends_on = None

# The one clock. SQLite's connections bring a function of the same name.
RELAY_NOW = """
CREATE FUNCTION relay_now(seconds double precision) RETURNS timestamptz
LANGUAGE sql STABLE AS $$ SELECT now() + make_interval(secs => seconds) $$
"""

# A ledger that can be edited proves nothing. Events go only with their job.
APPEND_ONLY = {"token_transactions": ("UPDATE", "DELETE"), "job_events": ("UPDATE",)}

REFUSE_CHANGE = """
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; END $$
"""


def upgrade() -> None:
    op.create_table(
        "batches",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=True),
        sa.Column("idempotency_key", sa.Text(), nullable=False),
        sa.Column("request_digest", sa.Text(), nullable=False),
        sa.Column("notify_urls", JsonText(), nullable=True),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_batches")),
        sa.UniqueConstraint("tenant_id", "idempotency_key", name=op.f("uq_batches_tenant_id_idempotency_key")),
    )
    op.create_index(op.f("ix_batches_tenant_id_id"), "batches", ["tenant_id", "id"], unique=False)
    op.create_table(
        "files",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("disk", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("mime_type", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=True),
        sa.Column("content_hash", sa.Text(), nullable=True),
        sa.Column("original_filename", sa.Text(), nullable=True),
        sa.Column("metadata", JsonText(), nullable=True),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("used_at", UtcTime(), nullable=True),
        sa.Column("removing_at", UtcTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_files")),
        sa.UniqueConstraint("disk", "path", name=op.f("uq_files_disk_path")),
    )
    op.create_index(
        "ix_files_removing",
        "files",
        ["id"],
        unique=False,
        postgresql_where=sa.text("removing_at IS NOT NULL"),
        sqlite_where=sa.text("removing_at IS NOT NULL"),
    )
    op.create_index(
        "ix_files_unused",
        "files",
        ["id"],
        unique=False,
        postgresql_where=sa.text("used_at IS NULL AND removing_at IS NULL"),
        sqlite_where=sa.text("used_at IS NULL AND removing_at IS NULL"),
    )
    op.create_table(
        "outbox",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("job_ids", JsonText(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_outbox")),
    )
    op.create_table(
        "presets",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("settings", JsonText(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_presets")),
        sa.UniqueConstraint("tenant_id", "name", name=op.f("uq_presets_tenant_id_name")),
    )
    op.create_table(
        "removals",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_removals")),
    )
    op.create_table(
        "token_transactions",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=True),
        sa.Column("reference", sa.Text(), nullable=True),
        sa.Column("description", sa.Text(), nullable=True),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.CheckConstraint(
            "(type = 'JOB_RESERVE' AND amount <= 0) OR (type = 'JOB_CONSUME' AND amount = 0) OR (type = 'JOB_REFUND' AND amount >= 0) OR (type = 'PAYMENT_CREDIT' AND amount > 0) OR type = 'ADJUSTMENT'",
            name=op.f("ck_token_transactions_amount"),
        ),
        sa.CheckConstraint(
            "type IN ('PAYMENT_CREDIT', 'JOB_RESERVE', 'JOB_CONSUME', 'JOB_REFUND', 'ADJUSTMENT')",
            name=op.f("ck_token_transactions_type"),
        ),
        sa.CheckConstraint(
            "type NOT LIKE 'JOB_%' OR job_id IS NOT NULL", name=op.f("ck_token_transactions_job_of_job_type")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_token_transactions")),
        sa.UniqueConstraint("tenant_id", "job_id", "type", name=op.f("uq_token_transactions_tenant_id_job_id_type")),
    )
    op.create_index(op.f("ix_token_transactions_tenant_id_id"), "token_transactions", ["tenant_id", "id"], unique=False)
    op.create_index(
        "uq_token_transactions_reference",
        "token_transactions",
        ["tenant_id", "reference"],
        unique=True,
        postgresql_where=sa.text("reference IS NOT NULL"),
        sqlite_where=sa.text("reference IS NOT NULL"),
    )
    op.create_index(
        "uq_token_transactions_settlement",
        "token_transactions",
        ["tenant_id", "job_id"],
        unique=True,
        postgresql_where=sa.text("type IN ('JOB_CONSUME', 'JOB_REFUND')"),
        sqlite_where=sa.text("type IN ('JOB_CONSUME', 'JOB_REFUND')"),
    )
    op.create_table(
        "token_wallets",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("balance", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("updated_at", UtcTime(), nullable=False),
        sa.CheckConstraint("balance >= 0", name=op.f("ck_token_wallets_balance")),
        sa.PrimaryKeyConstraint("tenant_id", name=op.f("pk_token_wallets")),
    )
    op.create_table(
        "videos",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), nullable=True),
        sa.Column("effect_id", sa.BigInteger(), nullable=True),
        sa.Column("status", sa.Text(), server_default="uploaded", nullable=False),
        sa.Column("job_id", sa.Text(), nullable=True),
        sa.Column("original_file_id", sa.Text(), nullable=True),
        sa.Column("processed_file_id", sa.Text(), nullable=True),
        sa.Column("processing_details", JsonText(), nullable=True),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("updated_at", UtcTime(), nullable=False),
        sa.CheckConstraint(
            "status IN ('uploaded', 'queued', 'processing', 'completed', 'failed', 'expired')",
            name=op.f("ck_videos_status"),
        ),
        sa.ForeignKeyConstraint(["original_file_id"], ["files.id"], name=op.f("fk_videos_original_file_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_videos")),
        postgresql_with={"fillfactor": "70"},
    )
    op.create_index(op.f("ix_videos_original_file_id"), "videos", ["original_file_id"], unique=False)
    op.create_index(op.f("ix_videos_tenant_id_id"), "videos", ["tenant_id", "id"], unique=False)
    op.create_table(
        "ai_jobs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("effect_id", sa.BigInteger(), nullable=True),
        sa.Column("workflow_id", sa.BigInteger(), nullable=False),
        sa.Column("workflow_hash", sa.Text(), nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), server_default="queued", nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("batch_id", sa.Text(), nullable=True),
        sa.Column("item_no", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("label", sa.Text(), nullable=True),
        sa.Column("video_id", sa.Text(), nullable=True),
        sa.Column("input_file_id", sa.Text(), nullable=True),
        sa.Column("output_file_id", sa.Text(), nullable=True),
        sa.Column("retry_of", sa.Text(), nullable=True),
        sa.Column("idempotency_key", sa.Text(), nullable=False),
        sa.Column("request_digest", sa.Text(), nullable=False),
        sa.Column("input_payload", JsonText(), nullable=False),
        sa.Column("webhook_url", sa.Text(), nullable=True),
        sa.Column("reserved_tokens", sa.BigInteger(), nullable=False),
        sa.Column("provider_job_id", sa.Text(), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("error_detail", sa.Text(), nullable=True),
        sa.Column("dispatch_version", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("event_seq", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("available_at", UtcTime(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("started_at", UtcTime(), nullable=True),
        sa.Column("completed_at", UtcTime(), nullable=True),
        sa.CheckConstraint(
            "(completed_at IS NOT NULL) = (status IN ('completed', 'failed', 'canceled'))",
            name=op.f("ck_ai_jobs_completed_iff_terminal"),
        ),
        sa.CheckConstraint("provider IN ('self_hosted', 'cloud')", name=op.f("ck_ai_jobs_provider")),
        sa.CheckConstraint("stage IN ('staging', 'production')", name=op.f("ck_ai_jobs_stage")),
        sa.CheckConstraint(
            "status IN ('queued', 'processing', 'completed', 'failed', 'canceled', 'paused')",
            name=op.f("ck_ai_jobs_status"),
        ),
        sa.CheckConstraint("reserved_tokens >= 0", name=op.f("ck_ai_jobs_reserved_tokens")),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.id"], name=op.f("fk_ai_jobs_batch_id")),
        sa.ForeignKeyConstraint(["input_file_id"], ["files.id"], name=op.f("fk_ai_jobs_input_file_id")),
        sa.ForeignKeyConstraint(["retry_of"], ["ai_jobs.id"], name=op.f("fk_ai_jobs_retry_of")),
        sa.ForeignKeyConstraint(["video_id"], ["videos.id"], name=op.f("fk_ai_jobs_video_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ai_jobs")),
        sa.UniqueConstraint("tenant_id", "idempotency_key", name=op.f("uq_ai_jobs_tenant_id_idempotency_key")),
        postgresql_with={"fillfactor": "80"},
    )
    op.create_index(
        "ix_ai_jobs_active",
        "ai_jobs",
        ["tenant_id", "user_id"],
        unique=False,
        postgresql_where=sa.text("completed_at IS NULL"),
        sqlite_where=sa.text("completed_at IS NULL"),
    )
    op.create_index(
        "ix_ai_jobs_batch",
        "ai_jobs",
        ["batch_id", "id"],
        unique=False,
        postgresql_where=sa.text("batch_id IS NOT NULL"),
        sqlite_where=sa.text("batch_id IS NOT NULL"),
    )
    op.create_index(
        "ix_ai_jobs_input_file",
        "ai_jobs",
        ["input_file_id"],
        unique=False,
        postgresql_where=sa.text("input_file_id IS NOT NULL"),
        sqlite_where=sa.text("input_file_id IS NOT NULL"),
    )
    op.create_index(
        "ix_ai_jobs_video",
        "ai_jobs",
        ["video_id"],
        unique=False,
        postgresql_where=sa.text("video_id IS NOT NULL"),
        sqlite_where=sa.text("video_id IS NOT NULL"),
    )
    op.create_index("ix_ai_jobs_tenant_newest", "ai_jobs", ["tenant_id", "id", "batch_id"], unique=False)
    if op.get_bind().dialect.name == "sqlite":
        op.create_index("ix_ai_jobs_status", "ai_jobs", ["tenant_id", "status", "id", "batch_id"], unique=False)
    op.create_index(
        "uq_ai_jobs_retry_of",
        "ai_jobs",
        ["retry_of"],
        unique=True,
        postgresql_where=sa.text("retry_of IS NOT NULL"),
        sqlite_where=sa.text("retry_of IS NOT NULL"),
    )
    op.create_table(
        "job_attempts",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("worker_id", sa.Text(), nullable=True),
        sa.Column("started_at", UtcTime(), nullable=True),
        sa.Column("ended_at", UtcTime(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("fault", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("seed", sa.Text(), nullable=True),
        sa.Column("about", JsonText(), nullable=True),
        sa.Column("provider_job_id", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "outcome IS NULL OR outcome IN ('completed', 'failed', 'requeued', 'expired', 'canceled', 'deferred')",
            name=op.f("ck_job_attempts_outcome"),
        ),
        sa.PrimaryKeyConstraint("job_id", "epoch", name=op.f("pk_job_attempts")),
    )
    op.create_table(
        "job_events",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("data", JsonText(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "seq", name=op.f("pk_job_events")),
    )
    op.create_table(
        "job_logs",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("line", sa.Text(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["ai_jobs.id"], name=op.f("fk_job_logs_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_job_logs")),
    )
    op.create_index(op.f("ix_job_logs_job_id_id"), "job_logs", ["job_id", "id"], unique=False)
    op.create_table(
        "stray_outputs",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("due_at", UtcTime(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_stray_outputs")),
    )
    op.create_index(op.f("ix_stray_outputs_due_at"), "stray_outputs", ["due_at"], unique=False)
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), server_default="pending", nullable=False),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("due_at", UtcTime(), nullable=True),
        sa.Column("last_status_code", sa.Integer(), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("delivered_at", UtcTime(), nullable=True),
        sa.CheckConstraint(
            "(due_at IS NOT NULL) = (status = 'pending')", name=op.f("ck_webhook_deliveries_due_iff_pending")
        ),
        sa.CheckConstraint("status IN ('pending', 'delivered', 'given_up')", name=op.f("ck_webhook_deliveries_status")),
        sa.ForeignKeyConstraint(
            ["job_id"], ["ai_jobs.id"], name=op.f("fk_webhook_deliveries_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_deliveries")),
        sa.UniqueConstraint("job_id", name=op.f("uq_webhook_deliveries_job_id")),
    )
    op.create_index(
        "ix_webhook_deliveries_due",
        "webhook_deliveries",
        ["due_at"],
        unique=False,
        postgresql_where=sa.text("status = 'pending'"),
        sqlite_where=sa.text("status = 'pending'"),
    )
    op.create_table(
        "webhooks",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=True),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("is_secret_shown", sa.Boolean(), nullable=False),
        sa.Column("updated_at", UtcTime(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", name=op.f("pk_webhooks")),
    )
    if op.get_bind().dialect.name == "postgresql":
        op.execute(RELAY_NOW)
        op.execute(REFUSE_CHANGE)
        for table, verbs in APPEND_ONLY.items():
            op.execute(
                f"CREATE TRIGGER {table}_append_only BEFORE {' OR '.join(verbs)} ON {table}"
                " FOR EACH ROW EXECUTE FUNCTION refuse_change()"
            )
    else:
        for table, verbs in APPEND_ONLY.items():
            for verb in verbs:
                op.execute(
                    f"CREATE TRIGGER {table}_append_only_{verb.lower()} BEFORE {verb} ON {table}"
                    f" BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
                )
