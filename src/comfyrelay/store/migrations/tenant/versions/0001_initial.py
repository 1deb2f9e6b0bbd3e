"""Create the tenant schema."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from comfyrelay.store.types import JsonText, UtcTime

revision = "tenant_0001"
down_revision = None

# SQLite assigns row ids automatically only to INTEGER PRIMARY KEY.
BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

# The database clock. SQLite connections register a Python function of the same name.
RELAY_NOW = """
CREATE FUNCTION relay_now(seconds double precision) RETURNS timestamptz
LANGUAGE sql STABLE AS $$ SELECT now() + make_interval(secs => seconds) $$
"""

# The ledger is immutable. Job events are deleted only together with their job.
APPEND_ONLY = {"token_transactions": ("UPDATE", "DELETE"), "job_events": ("UPDATE",)}

REFUSE_CHANGE = """
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; END $$
"""


def upgrade() -> None:
    _create_media()
    _create_jobs()
    _create_job_history()
    _create_ledger()
    _create_library()
    _create_webhooks()
    _create_background_work()
    if op.get_bind().dialect.name == "postgresql":
        op.execute(RELAY_NOW)
    _create_append_only_triggers()


def _create_media() -> None:
    op.create_table(
        "files",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("disk", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("mime_type", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger()),
        sa.Column("content_hash", sa.Text()),
        sa.Column("blake3", sa.Text()),
        sa.Column("original_filename", sa.Text()),
        sa.Column("metadata", JsonText()),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("used_at", UtcTime()),
        sa.Column("unused_at", UtcTime()),
        sa.Column("removing_at", UtcTime()),
        sa.Column("width", sa.Integer()),
        sa.Column("height", sa.Integer()),
        sa.Column("seconds", sa.Double()),
        sa.Column("poster", sa.Text()),
        sa.Column("preview", sa.Text()),
        sa.Column("poster_due_at", UtcTime()),
        sa.UniqueConstraint("disk", "path", name=op.f("uq_files_disk_path")),
    )
    _create_partial_index(
        "ix_files_names", "files", ["tenant_id", "original_filename"], where="original_filename IS NOT NULL"
    )
    _create_partial_index("ix_files_blake3", "files", ["tenant_id", "blake3"], where="blake3 IS NOT NULL")
    _create_partial_index("ix_files_poster_due", "files", ["poster_due_at"], where="poster_due_at IS NOT NULL")
    _create_partial_index("ix_files_removing", "files", ["id"], where="removing_at IS NOT NULL")
    _create_partial_index("ix_files_unused", "files", ["id"], where="used_at IS NULL AND removing_at IS NULL")
    _create_partial_index(
        "ix_files_uploads", "files", ["tenant_id", "id", "size"], where="original_filename IS NOT NULL"
    )
    op.create_table(
        "batches",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("label", sa.Text()),
        sa.Column("idempotency_key", sa.Text(), nullable=False),
        sa.Column("request_digest", sa.Text(), nullable=False),
        sa.Column("notify_urls", JsonText()),
        sa.Column("axes", JsonText()),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("held", JsonText()),
        sa.Column("cleared_at", UtcTime()),
        sa.UniqueConstraint("tenant_id", "idempotency_key", name=op.f("uq_batches_tenant_id_idempotency_key")),
    )
    op.create_index("ix_batches_tenant_id_id", "batches", ["tenant_id", "id"])
    op.create_table(
        "videos",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("title", sa.Text()),
        sa.Column("effect_id", sa.BigInteger()),
        sa.Column("status", sa.Text(), server_default="uploaded", nullable=False),
        sa.Column("job_id", sa.Text()),
        sa.Column("original_file_id", sa.Text(), sa.ForeignKey("files.id")),
        sa.Column("processed_file_id", sa.Text()),
        sa.Column("processing_details", JsonText()),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("updated_at", UtcTime(), nullable=False),
        sa.CheckConstraint(
            "status IN ('uploaded', 'queued', 'processing', 'completed', 'failed', 'expired')",
            name=op.f("ck_videos_status"),
        ),
        postgresql_with={"fillfactor": "70"},
    )
    op.create_index("ix_videos_original_file_id", "videos", ["original_file_id"])
    op.create_index("ix_videos_tenant_id_id", "videos", ["tenant_id", "id"])


def _create_jobs() -> None:
    op.create_table(
        "ai_jobs",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("effect_id", sa.BigInteger()),
        sa.Column("workflow_id", sa.BigInteger(), nullable=False),
        sa.Column("workflow_hash", sa.Text(), nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), server_default="queued", nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("batch_id", sa.Text(), sa.ForeignKey("batches.id")),
        sa.Column("item_no", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("label", sa.Text()),
        sa.Column("video_id", sa.Text(), sa.ForeignKey("videos.id")),
        sa.Column("input_file_id", sa.Text(), sa.ForeignKey("files.id")),
        sa.Column("output_file_id", sa.Text()),
        sa.Column("retry_of", sa.Text(), sa.ForeignKey("ai_jobs.id")),
        sa.Column("idempotency_key", sa.Text(), nullable=False),
        sa.Column("request_digest", sa.Text(), nullable=False),
        sa.Column("input_payload", JsonText(), nullable=False),
        sa.Column("private_graph", sa.Text()),
        sa.Column("space_bytes", sa.BigInteger()),
        sa.Column("webhook_url", sa.Text()),
        sa.Column("reserved_tokens", sa.BigInteger(), nullable=False),
        sa.Column("millitokens_per_second", sa.BigInteger()),
        sa.Column("charged_tokens", sa.BigInteger()),
        sa.Column("max_wait_seconds", sa.Integer()),
        sa.Column("only_worker", sa.Text()),
        sa.Column("cost_micros", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("expected_cost_micros", sa.BigInteger()),
        sa.Column("fingerprint", sa.Text()),
        sa.Column("reused_from", sa.Text()),
        sa.Column("saved_tokens", sa.BigInteger()),
        sa.Column("provider_job_id", sa.Text()),
        sa.Column("error_message", sa.Text()),
        sa.Column("error_detail", sa.Text()),
        sa.Column("dispatch_version", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("event_seq", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("available_at", UtcTime(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("started_at", UtcTime()),
        sa.Column("completed_at", UtcTime()),
        sa.Column("cleared_at", UtcTime()),
        sa.UniqueConstraint("tenant_id", "idempotency_key", name=op.f("uq_ai_jobs_tenant_id_idempotency_key")),
        sa.CheckConstraint(
            "(completed_at IS NOT NULL) = (status IN ('completed', 'failed', 'canceled'))",
            name=op.f("ck_ai_jobs_completed_iff_terminal"),
        ),
        sa.CheckConstraint("provider IN ('self_hosted', 'cloud')", name=op.f("ck_ai_jobs_provider")),
        sa.CheckConstraint("reserved_tokens >= 0", name=op.f("ck_ai_jobs_reserved_tokens")),
        sa.CheckConstraint(
            "charged_tokens >= 0 AND charged_tokens <= reserved_tokens", name=op.f("ck_ai_jobs_charged_tokens")
        ),
        sa.CheckConstraint("stage IN ('staging', 'production')", name=op.f("ck_ai_jobs_stage")),
        sa.CheckConstraint(
            "status IN ('queued', 'processing', 'completed', 'failed', 'canceled', 'paused')",
            name=op.f("ck_ai_jobs_status"),
        ),
        postgresql_with={"fillfactor": "80"},
    )
    _create_partial_index("ix_ai_jobs_active", "ai_jobs", ["tenant_id", "user_id"], where="completed_at IS NULL")
    _create_partial_index("ix_ai_jobs_batch", "ai_jobs", ["batch_id", "id"], where="batch_id IS NOT NULL")
    _create_partial_index("ix_ai_jobs_cleared", "ai_jobs", ["tenant_id", "status"], where="cleared_at IS NOT NULL")
    _create_partial_index(
        "ix_ai_jobs_fingerprint", "ai_jobs", ["tenant_id", "fingerprint"], where="fingerprint IS NOT NULL"
    )
    _create_partial_index("ix_ai_jobs_input_file", "ai_jobs", ["input_file_id"], where="input_file_id IS NOT NULL")
    _create_partial_index("ix_ai_jobs_private_graph", "ai_jobs", ["private_graph"], where="private_graph IS NOT NULL")
    op.create_index("ix_ai_jobs_tenant_newest", "ai_jobs", ["tenant_id", "id", "batch_id"])
    _create_partial_index("ix_ai_jobs_video", "ai_jobs", ["video_id"], where="video_id IS NOT NULL")
    _create_partial_index("uq_ai_jobs_retry_of", "ai_jobs", ["retry_of"], where="retry_of IS NOT NULL", unique=True)
    if op.get_bind().dialect.name == "sqlite":
        op.create_index(
            "ix_ai_jobs_items",
            "ai_jobs",
            [
                "batch_id",
                "item_no",
                "id",
                "tenant_id",
                "status",
                "completed_at",
                "priority",
                "workflow_id",
                "effect_id",
                "started_at",
            ],
            sqlite_where=sa.text("batch_id IS NOT NULL"),
        )
    if op.get_bind().dialect.name == "sqlite":
        op.create_index("ix_ai_jobs_status", "ai_jobs", ["tenant_id", "status", "id", "batch_id"])


def _create_job_history() -> None:
    op.create_table(
        "job_attempts",
        sa.Column("job_id", sa.Text(), primary_key=True),
        sa.Column("epoch", sa.BigInteger(), primary_key=True),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("worker_id", sa.Text()),
        sa.Column("started_at", UtcTime()),
        sa.Column("ended_at", UtcTime()),
        sa.Column("outcome", sa.Text()),
        sa.Column("fault", sa.Text()),
        sa.Column("error", sa.Text()),
        sa.Column("seed", sa.Text()),
        sa.Column("about", JsonText()),
        sa.Column("provider_job_id", sa.Text()),
        sa.CheckConstraint(
            "outcome IS NULL OR outcome IN ('completed', 'failed', 'requeued', 'expired', 'canceled', 'deferred')",
            name=op.f("ck_job_attempts_outcome"),
        ),
    )
    op.create_table(
        "job_events",
        sa.Column("job_id", sa.Text(), primary_key=True),
        sa.Column("seq", sa.Integer(), primary_key=True),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("data", JsonText(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
    )
    op.create_table(
        "job_logs",
        sa.Column("id", BIG_ID, primary_key=True),
        sa.Column("job_id", sa.Text(), sa.ForeignKey("ai_jobs.id", ondelete="CASCADE"), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("line", sa.Text(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
    )
    op.create_index("ix_job_logs_job_id_id", "job_logs", ["job_id", "id"])
    op.create_table(
        "comfyui_prompts",
        sa.Column("job_id", sa.Text(), sa.ForeignKey("ai_jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("prompt_id", sa.Text(), nullable=False),
        sa.Column("client_id", sa.Text()),
        sa.Column("workflow_id", sa.Text()),
        sa.Column("sent", JsonText(), nullable=False),
        sa.Column("hidden_at", UtcTime()),
        sa.UniqueConstraint("tenant_id", "prompt_id", name=op.f("uq_comfyui_prompts_tenant_id_prompt_id")),
    )
    op.create_index("ix_comfyui_prompts_tenant_id_job_id", "comfyui_prompts", ["tenant_id", "job_id"])
    op.create_table(
        "comfyui_files",
        sa.Column("tenant_id", sa.Text(), primary_key=True),
        sa.Column("path", sa.Text(), primary_key=True),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("modified_at", UtcTime(), nullable=False),
    )
    op.create_table(
        "changes",
        sa.Column("id", BIG_ID, primary_key=True),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("txid", sa.BigInteger(), nullable=False),
        sa.Column("ids", JsonText(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
    )
    op.create_index("ix_changes_tenant_id_txid", "changes", ["tenant_id", "txid"])


def _create_ledger() -> None:
    op.create_table(
        "token_wallets",
        sa.Column("tenant_id", sa.Text(), primary_key=True),
        sa.Column("balance", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("owed_tokens", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("space_bytes", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("updated_at", UtcTime(), nullable=False),
        sa.CheckConstraint("balance >= 0", name=op.f("ck_token_wallets_balance")),
        sa.CheckConstraint("owed_tokens >= 0", name=op.f("ck_token_wallets_owed_tokens")),
    )
    op.create_table(
        "token_transactions",
        sa.Column("id", BIG_ID, primary_key=True),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.Column("job_id", sa.Text()),
        sa.Column("reference", sa.Text()),
        sa.Column("description", sa.Text()),
        sa.Column("effect_id", sa.BigInteger()),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.UniqueConstraint("tenant_id", "job_id", "type", name=op.f("uq_token_transactions_tenant_id_job_id_type")),
        sa.CheckConstraint(
            "(type = 'JOB_RESERVE' AND amount <= 0) OR (type = 'JOB_CONSUME' AND amount >= 0) OR (type = 'JOB_REFUND' AND amount >= 0) OR (type = 'JOB_CREDIT' AND amount > 0) OR (type = 'PAYMENT_CREDIT' AND amount > 0) OR type = 'ADJUSTMENT'",
            name=op.f("ck_token_transactions_amount"),
        ),
        sa.CheckConstraint(
            "type IN ('PAYMENT_CREDIT', 'JOB_RESERVE', 'JOB_CONSUME', 'JOB_REFUND', 'JOB_CREDIT', 'ADJUSTMENT')",
            name=op.f("ck_token_transactions_type"),
        ),
        sa.CheckConstraint(
            "type NOT LIKE 'JOB_%' OR job_id IS NOT NULL", name=op.f("ck_token_transactions_job_of_job_type")
        ),
    )
    op.create_index("ix_token_transactions_tenant_id_id", "token_transactions", ["tenant_id", "id"])
    _create_partial_index(
        "uq_token_transactions_reference",
        "token_transactions",
        ["tenant_id", "reference"],
        where="reference IS NOT NULL",
        unique=True,
    )
    _create_partial_index(
        "uq_token_transactions_settlement",
        "token_transactions",
        ["tenant_id", "job_id"],
        where="type IN ('JOB_CONSUME', 'JOB_REFUND')",
        unique=True,
    )


def _create_library() -> None:
    op.create_table(
        "outputs",
        sa.Column("id", sa.Text(), sa.ForeignKey("files.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("batch_id", sa.Text()),
        sa.Column("item_no", sa.Integer(), nullable=False),
        sa.Column("workflow_id", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("label", sa.Text()),
        sa.Column("texts", sa.Text()),
        sa.Column("mark", sa.Text()),
        sa.Column("note", sa.Text()),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.UniqueConstraint("job_id", "number", name=op.f("uq_outputs_job_id_number")),
        sa.CheckConstraint("mark IS NULL OR mark IN ('starred', 'rejected')", name=op.f("ck_outputs_mark")),
    )
    _create_partial_index(
        "ix_outputs_marked", "outputs", ["tenant_id", "mark", "created_at", "id"], where="mark IS NOT NULL"
    )
    op.create_index(
        "ix_outputs_newest", "outputs", ["tenant_id", "created_at", "id", "workflow_id", "kind", "batch_id"]
    )
    op.create_table(
        "collections",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.UniqueConstraint("tenant_id", "name", name=op.f("uq_collections_tenant_id_name")),
    )
    op.create_table(
        "collection_items",
        sa.Column("collection_id", sa.Text(), sa.ForeignKey("collections.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("output_id", sa.Text(), sa.ForeignKey("outputs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("tenant_id", sa.Text(), nullable=False),
    )
    op.create_index("ix_collection_items_output_id", "collection_items", ["output_id"])
    op.create_table(
        "zips",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("output_ids", JsonText(), nullable=False),
        sa.Column("expires_at", UtcTime(), nullable=False),
    )
    op.create_index("ix_zips_expires_at", "zips", ["expires_at"])
    op.create_table(
        "graphs",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("editor_bytes", sa.BigInteger(), nullable=False),
        sa.Column("properties_hash", sa.Text(), nullable=False),
        sa.Column("unused_at", UtcTime()),
        sa.UniqueConstraint("tenant_id", "sha256", name=op.f("uq_graphs_tenant_id_sha256")),
    )
    op.create_table(
        "presets",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("settings", JsonText(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.UniqueConstraint("tenant_id", "name", name=op.f("uq_presets_tenant_id_name")),
    )
    op.create_table(
        "saved_views",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("area", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("search", JsonText(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.UniqueConstraint("tenant_id", "area", "name", name=op.f("uq_saved_views_tenant_id_area_name")),
    )


def _create_webhooks() -> None:
    op.create_table(
        "webhooks",
        sa.Column("tenant_id", sa.Text(), primary_key=True),
        sa.Column("url", sa.Text()),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("is_secret_shown", sa.Boolean(), nullable=False),
        sa.Column("updated_at", UtcTime(), nullable=False),
    )
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), sa.ForeignKey("ai_jobs.id", ondelete="CASCADE"), nullable=False, unique=True),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), server_default="pending", nullable=False),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("due_at", UtcTime()),
        sa.Column("last_status_code", sa.Integer()),
        sa.Column("last_error", sa.Text()),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("delivered_at", UtcTime()),
        sa.CheckConstraint(
            "(due_at IS NOT NULL) = (status = 'pending')", name=op.f("ck_webhook_deliveries_due_iff_pending")
        ),
        sa.CheckConstraint("status IN ('pending', 'delivered', 'given_up')", name=op.f("ck_webhook_deliveries_status")),
    )
    _create_partial_index("ix_webhook_deliveries_due", "webhook_deliveries", ["due_at"], where="status = 'pending'")
    op.create_index("ix_webhook_deliveries_status", "webhook_deliveries", ["status", "id"])
    op.create_index("ix_webhook_deliveries_tenant_id_id", "webhook_deliveries", ["tenant_id", "id"])


def _create_background_work() -> None:
    op.create_table(
        "outbox",
        sa.Column("id", BIG_ID, primary_key=True),
        sa.Column("job_ids", JsonText(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "orphaned_outputs",
        sa.Column("job_id", sa.Text(), primary_key=True),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("due_at", UtcTime(), nullable=False),
    )
    op.create_index("ix_orphaned_outputs_due_at", "orphaned_outputs", ["due_at"])
    op.create_table(
        "removals",
        sa.Column("id", BIG_ID, primary_key=True),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
    )


def _create_append_only_triggers() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(REFUSE_CHANGE)
        for table, verbs in APPEND_ONLY.items():
            op.execute(
                f"CREATE TRIGGER {table}_append_only BEFORE {' OR '.join(verbs)} ON {table}"
                " FOR EACH ROW EXECUTE FUNCTION refuse_change()"
            )
        return
    for table, verbs in APPEND_ONLY.items():
        for verb in verbs:
            op.execute(
                f"CREATE TRIGGER {table}_append_only_{verb.lower()} BEFORE {verb} ON {table}"
                f" BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
            )


def _create_partial_index(
    name: str, table: str, columns: Sequence[str | sa.TextClause], *, where: str, unique: bool = False
) -> None:
    condition = sa.text(where)
    op.create_index(name, table, columns, unique=unique, postgresql_where=condition, sqlite_where=condition)
