"""The tenant schema: private data. Every row has a `tenant_id`; a shard holds many tenants."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from comfyrelay.domain.deliveries import DeliveryStatus
from comfyrelay.domain.gallery import Mark
from comfyrelay.domain.queue.states import JobStatus, Outcome, Provider, Stage, TransactionType, VideoStatus
from comfyrelay.store.schema import BigId, one_of, partial_index, tenant_metadata
from comfyrelay.store.types import JsonText, UtcTime

metadata = tenant_metadata

files = Table(
    "files",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("user_id", Text, nullable=False),
    Column("disk", Text, nullable=False),
    Column("path", Text, nullable=False),
    Column("mime_type", Text, nullable=False),
    Column("size", BigInteger),
    Column("content_hash", Text),
    # The hash that clients of the Comfy API use to find an upload.
    Column("blake3", Text),
    Column("original_filename", Text),
    Column("metadata", JsonText),
    Column("created_at", UtcTime, nullable=False),
    # When a job first used or created it. An upload without it is deleted.
    Column("used_at", UtcTime),
    # When a job that used it was deleted, unless a job has used it since.
    Column("unused_at", UtcTime),
    # From this time on, nothing new may use the file. Its object is deleted later, then the row.
    Column("removing_at", UtcTime),
    # Read from the file, if applicable.
    Column("width", Integer),
    Column("height", Integer),
    Column("seconds", Double),
    # The formats of its poster and preview, which are stored next to it under names derived from its path.
    Column("poster", Text),
    Column("preview", Text),
    # When its poster is due. A process postpones this time before drawing, so that no other process draws it, too.
    Column("poster_due_at", UtcTime),
    UniqueConstraint("disk", "path"),
    # Outputs have no original name.
    partial_index("ix_files_uploads", "tenant_id", "id", "size", where="original_filename IS NOT NULL"),
    partial_index("ix_files_names", "tenant_id", "original_filename", where="original_filename IS NOT NULL"),
    partial_index("ix_files_blake3", "tenant_id", "blake3", where="blake3 IS NOT NULL"),
    partial_index("ix_files_unused", "id", where="used_at IS NULL AND removing_at IS NULL"),
    partial_index("ix_files_poster_due", "poster_due_at", where="poster_due_at IS NOT NULL"),
    partial_index("ix_files_removing", "id", where="removing_at IS NOT NULL"),
)

batches = Table(
    "batches",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("user_id", Text, nullable=False),
    Column("label", Text),
    Column("idempotency_key", Text, nullable=False),
    Column("request_digest", Text, nullable=False),
    # Notified when it has finished. The URLs contain secrets.
    Column("notify_urls", JsonText),
    # The lists that its items combine, in item order.
    Column("axes", JsonText),
    Column("created_at", UtcTime, nullable=False),
    # The reason and the start of its hold, and the failed jobs that caused the hold.
    Column("held", JsonText),
    # When it was hidden from the queue, with all its jobs.
    Column("cleared_at", UtcTime),
    UniqueConstraint("tenant_id", "idempotency_key"),
    Index(None, "tenant_id", "id"),
)

videos = Table(
    "videos",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("user_id", Text, nullable=False),
    Column("title", Text),
    Column("effect_id", BigInteger),
    Column("status", Text, nullable=False, server_default=VideoStatus.UPLOADED),
    # The newest job of its retry chain, whose outcome the video shows.
    Column("job_id", Text),
    Column("original_file_id", Text, ForeignKey("files.id")),
    # An output, which may be deleted. A foreign key would need an index that every completion writes.
    Column("processed_file_id", Text),
    Column("processing_details", JsonText),
    Column("created_at", UtcTime, nullable=False),
    Column("updated_at", UtcTime, nullable=False),
    one_of("status", VideoStatus),
    Index(None, "tenant_id", "id"),
    # Files, videos and batches are deleted: their references must be found without scanning whole tables.
    Index(None, "original_file_id"),
    # A video changes with the state of its job, which no index contains: free space on the page makes it a HOT update.
    postgresql_with={"fillfactor": "70"},
)

ai_jobs = Table(
    "ai_jobs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("user_id", Text, nullable=False),
    Column("effect_id", BigInteger),
    Column("workflow_id", BigInteger, nullable=False),
    Column("workflow_hash", Text, nullable=False),
    Column("provider", Text, nullable=False),
    Column("stage", Text, nullable=False),
    Column("status", Text, nullable=False, server_default=JobStatus.QUEUED),
    Column("priority", Integer, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("batch_id", Text, ForeignKey("batches.id")),
    # The position in its batch, which the queue preserves.
    Column("item_no", Integer, nullable=False, server_default=text("0")),
    # A name for users.
    Column("label", Text),
    Column("video_id", Text, ForeignKey("videos.id")),
    Column("input_file_id", Text, ForeignKey("files.id")),
    # No foreign key; see `videos`.
    Column("output_file_id", Text),
    Column("retry_of", Text, ForeignKey("ai_jobs.id")),
    Column("idempotency_key", Text, nullable=False),
    Column("request_digest", Text, nullable=False),
    Column("input_payload", JsonText, nullable=False),
    # The path of its graph, if it belongs to a tenant. The graph is kept as long as a job refers to it.
    Column("private_graph", Text),
    # Its share of `token_wallets.space_bytes`; null if it has a price.
    Column("space_bytes", BigInteger),
    Column("webhook_url", Text),
    Column("reserved_tokens", BigInteger, nullable=False),
    # The price per second of its run, in thousandths of a token; null: it costs the reserved tokens.
    Column("millitokens_per_second", BigInteger),
    # Its cost in tokens; null until it ends.
    Column("charged_tokens", BigInteger),
    # Maximum wait before it may burst to the cloud.
    Column("max_wait_seconds", Integer),
    # Only this worker may run the job.
    Column("only_worker", Text),
    # The cost of its runs, and the expected cost of its burst, if any, in millionths of a currency unit.
    Column("cost_micros", BigInteger, nullable=False, server_default=text("0")),
    Column("expected_cost_micros", BigInteger),
    # Hash of its graph, values and inputs. Equal jobs of a tenant have the same fingerprint.
    Column("fingerprint", Text),
    # The job whose output it reuses, which may have been deleted, and the tokens that a reused output or a free run
    # saved.
    Column("reused_from", Text),
    Column("saved_tokens", BigInteger),
    Column("provider_job_id", Text),
    Column("error_message", Text),
    Column("error_detail", Text),
    # The version of the dispatch up to which updates are applied.
    Column("dispatch_version", BigInteger, nullable=False, server_default=text("0")),
    Column("event_seq", Integer, nullable=False, server_default=text("0")),
    Column("available_at", UtcTime, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("started_at", UtcTime),
    Column("completed_at", UtcTime),
    # When it was hidden from the queue.
    Column("cleared_at", UtcTime),
    UniqueConstraint("tenant_id", "idempotency_key"),
    one_of("status", JobStatus),
    one_of("provider", Provider),
    one_of("stage", Stage),
    CheckConstraint("reserved_tokens >= 0", name="reserved_tokens"),
    CheckConstraint("charged_tokens >= 0 AND charged_tokens <= reserved_tokens", name="charged_tokens"),
    CheckConstraint(
        "(completed_at IS NOT NULL) = (status IN ('completed', 'failed', 'canceled'))",
        name="completed_iff_terminal",
    ),
    # Includes the batch, so that a list can skip items of batches without reading their rows.
    Index("ix_ai_jobs_tenant_newest", "tenant_id", "id", "batch_id"),
    # A desk has one tenant, and its page counts and filters every second. On PostgreSQL, this index would make each
    # start of a job write all indexes.
    Index("ix_ai_jobs_status", "tenant_id", "status", "id", "batch_id", info={"only": "sqlite"}),
    # Without the status, so that the start of a job does not change the index.
    partial_index("ix_ai_jobs_active", "tenant_id", "user_id", where="completed_at IS NULL"),
    # A job is retried at most once. A retry can be retried itself, so a chain never forks.
    partial_index("uq_ai_jobs_retry_of", "retry_of", where="retry_of IS NOT NULL", unique=True),
    partial_index("ix_ai_jobs_fingerprint", "tenant_id", "fingerprint", where="fingerprint IS NOT NULL"),
    partial_index("ix_ai_jobs_batch", "batch_id", "id", where="batch_id IS NOT NULL"),
    partial_index("ix_ai_jobs_cleared", "tenant_id", "status", where="cleared_at IS NOT NULL"),
    partial_index("ix_ai_jobs_video", "video_id", where="video_id IS NOT NULL"),
    partial_index("ix_ai_jobs_input_file", "input_file_id", where="input_file_id IS NOT NULL"),
    partial_index("ix_ai_jobs_private_graph", "private_graph", where="private_graph IS NOT NULL"),
    postgresql_with={"fillfactor": "80"},
)
# A desk shows the first items of batches, and sums up all items, which may be thousands.
Index(
    "ix_ai_jobs_items",
    *(ai_jobs.c[name] for name in ("batch_id", "item_no", "id", "tenant_id", "status", "completed_at", "priority")),
    *(ai_jobs.c[name] for name in ("workflow_id", "effect_id", "started_at")),
    sqlite_where=text("batch_id IS NOT NULL"),
    info={"only": "sqlite"},
)

job_attempts = Table(
    "job_attempts",
    metadata,
    # Written under the lock of the job and deleted with it, so a foreign key would only cost a lookup per row.
    Column("job_id", Text, primary_key=True),
    Column("epoch", BigInteger, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("number", Integer, nullable=False),
    Column("worker_id", Text),
    Column("started_at", UtcTime),
    Column("ended_at", UtcTime),
    Column("outcome", Text),
    Column("fault", Text),
    Column("error", Text),
    # As text: seeds are unsigned 64-bit numbers, which databases cannot store.
    Column("seed", Text),
    Column("about", JsonText),
    Column("provider_job_id", Text),
    one_of("outcome", Outcome, nullable=True),
)

job_events = Table(
    "job_events",
    metadata,
    # No foreign key, as in `job_attempts`.
    Column("job_id", Text, primary_key=True),
    Column("seq", Integer, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("data", JsonText, nullable=False),
    Column("created_at", UtcTime, nullable=False),
)

changes = Table(
    "changes",
    metadata,
    # What one transaction changed or deleted, for subscribers of the tenant. Kept for an hour.
    Column("id", BigId, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    # The number of the transaction. Like ids, it is assigned before the commit, so it is not in commit order.
    Column("txid", BigInteger, nullable=False),
    # Ids of jobs, of the batches of deleted jobs, and of marked outputs.
    Column("ids", JsonText, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Index(None, "tenant_id", "txid"),
)

job_logs = Table(
    "job_logs",
    metadata,
    Column("id", BigId, primary_key=True),
    Column("job_id", Text, ForeignKey("ai_jobs.id", ondelete="CASCADE"), nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("tenant_id", Text, nullable=False),
    Column("line", Text, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Index(None, "job_id", "id"),
)

comfyui_prompts = Table(
    "comfyui_prompts",
    metadata,
    # What a client of ComfyUI's API sent with a job.
    Column("job_id", Text, ForeignKey("ai_jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("tenant_id", Text, nullable=False),
    # The id that the client chose; by default the id of the job.
    Column("prompt_id", Text, nullable=False),
    # The WebSocket that gets its events.
    Column("client_id", Text),
    # The id that the editor gave its workflow.
    Column("workflow_id", Text),
    # The graph and the extra data as sent, and the output nodes that run.
    Column("sent", JsonText, nullable=False),
    # When the client removed it from the history. The job is kept.
    Column("hidden_at", UtcTime),
    UniqueConstraint("tenant_id", "prompt_id"),
    Index(None, "tenant_id", "job_id"),
)

comfyui_files = Table(
    "comfyui_files",
    metadata,
    # Files that ComfyUI's editor keeps for its user: saved workflows and settings.
    Column("tenant_id", Text, primary_key=True),
    Column("path", Text, primary_key=True),
    Column("content", LargeBinary, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("modified_at", UtcTime, nullable=False),
)

token_wallets = Table(
    "token_wallets",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("balance", BigInteger, nullable=False, server_default=text("0")),
    # Tokens of refunded payments that had already been spent. They are deducted from new credits.
    Column("owed_tokens", BigInteger, nullable=False, server_default=text("0")),
    # Total size of its graphs and of its jobs without a price, changed together with them.
    Column("space_bytes", BigInteger, nullable=False, server_default=text("0")),
    Column("updated_at", UtcTime, nullable=False),
    CheckConstraint("balance >= 0", name="balance"),
    CheckConstraint("owed_tokens >= 0", name="owed_tokens"),
)

token_transactions = Table(
    "token_transactions",
    metadata,
    Column("id", BigId, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("job_id", Text),
    Column("reference", Text),
    Column("description", Text),
    # The effect of a consumed or refunded job, which may have been deleted.
    Column("effect_id", BigInteger),
    Column("created_at", UtcTime, nullable=False),
    UniqueConstraint("tenant_id", "job_id", "type"),
    one_of("type", TransactionType),
    CheckConstraint(
        "(type = 'JOB_RESERVE' AND amount <= 0) OR (type = 'JOB_CONSUME' AND amount >= 0)"
        " OR (type = 'JOB_REFUND' AND amount >= 0) OR (type = 'JOB_CREDIT' AND amount > 0)"
        " OR (type = 'PAYMENT_CREDIT' AND amount > 0)"
        " OR type = 'ADJUSTMENT'",
        name="amount",
    ),
    CheckConstraint("type NOT LIKE 'JOB_%' OR job_id IS NOT NULL", name="job_of_job_type"),
    Index(None, "tenant_id", "id"),
    partial_index(
        "uq_token_transactions_settlement",
        "tenant_id",
        "job_id",
        where="type IN ('JOB_CONSUME', 'JOB_REFUND')",
        unique=True,
    ),
    partial_index(
        "uq_token_transactions_reference", "tenant_id", "reference", where="reference IS NOT NULL", unique=True
    ),
)

graphs = Table(
    "graphs",
    metadata,
    # Graphs of private workflows. The id is part of the storage path, which is never reused.
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("sha256", Text, nullable=False),
    # Size of the graph, of its editor file, and of the properties of each workflow that was stored with it.
    Column("bytes", BigInteger, nullable=False),
    # The size of its editor file, which a later import may replace.
    Column("editor_bytes", BigInteger, nullable=False),
    Column("properties_hash", Text, nullable=False),
    # The time since which no workflow and no job has referred to it.
    Column("unused_at", UtcTime),
    UniqueConstraint("tenant_id", "sha256"),
)

presets = Table(
    "presets",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("settings", JsonText, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    UniqueConstraint("tenant_id", "name"),
)

saved_views = Table(
    "saved_views",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("area", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("search", JsonText, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    UniqueConstraint("tenant_id", "area", "name"),
)

outputs = Table(
    "outputs",
    metadata,
    # One row per output file, with the id of the file, and deleted with it.
    Column("id", Text, ForeignKey("files.id", ondelete="CASCADE"), primary_key=True),
    Column("tenant_id", Text, nullable=False),
    # No foreign key, as in `job_attempts`.
    Column("job_id", Text, nullable=False),
    # Number of the output within its job, starting at 1.
    Column("number", Integer, nullable=False),
    # Constant fields of the job, so that the gallery can filter without reading jobs.
    Column("batch_id", Text),
    Column("item_no", Integer, nullable=False),
    Column("workflow_id", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("label", Text),
    # The text inputs of the job, such as prompts, extracted from JSON once instead of for each search.
    Column("texts", Text),
    Column("mark", Text),
    Column("note", Text),
    Column("created_at", UtcTime, nullable=False),
    UniqueConstraint("job_id", "number"),
    one_of("mark", Mark, nullable=True),
    # Includes the filter columns, so that outputs are skipped and counted without reading rows.
    Index("ix_outputs_newest", "tenant_id", "created_at", "id", "workflow_id", "kind", "batch_id"),
    partial_index("ix_outputs_marked", "tenant_id", "mark", "created_at", "id", where="mark IS NOT NULL"),
)

collections = Table(
    "collections",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    UniqueConstraint("tenant_id", "name"),
)

collection_items = Table(
    "collection_items",
    metadata,
    Column("collection_id", Text, ForeignKey("collections.id", ondelete="CASCADE"), primary_key=True),
    Column("output_id", Text, ForeignKey("outputs.id", ondelete="CASCADE"), primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Index(None, "output_id"),
)

zips = Table(
    "zips",
    metadata,
    # Outputs that a user may download as one file until it expires. The id is a secret.
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("user_id", Text, nullable=False),
    Column("output_ids", JsonText, nullable=False),
    Column("expires_at", UtcTime, nullable=False),
    Index(None, "expires_at"),
)

webhooks = Table(
    "webhooks",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    # For jobs without their own URL.
    Column("url", Text),
    Column("secret", Text, nullable=False),
    Column("is_secret_shown", Boolean, nullable=False),
    Column("updated_at", UtcTime, nullable=False),
)

webhook_deliveries = Table(
    "webhook_deliveries",
    metadata,
    # Written in the transaction that finishes its job.
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("job_id", Text, ForeignKey("ai_jobs.id", ondelete="CASCADE"), nullable=False, unique=True),
    Column("url", Text, nullable=False),
    Column("status", Text, nullable=False, server_default=DeliveryStatus.PENDING),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    # Time of the next attempt. A process postpones it before sending, so that no other process sends it, too.
    Column("due_at", UtcTime),
    Column("last_status_code", Integer),
    Column("last_error", Text),
    Column("created_at", UtcTime, nullable=False),
    Column("delivered_at", UtcTime),
    one_of("status", DeliveryStatus),
    CheckConstraint("(due_at IS NOT NULL) = (status = 'pending')", name="due_iff_pending"),
    Index(None, "tenant_id", "id"),
    Index("ix_webhook_deliveries_status", "status", "id"),
    partial_index("ix_webhook_deliveries_due", "due_at", where="status = 'pending'"),
)

orphaned_outputs = Table(
    "orphaned_outputs",
    metadata,
    # Finished jobs that were leased: objects in their folder that are not their output are deleted at `due_at`.
    Column("job_id", Text, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("due_at", UtcTime, nullable=False),
    Index(None, "due_at"),
)

removals = Table(
    "removals",
    metadata,
    # Objects without a row: written when the row is deleted, kept until storage has deleted the object.
    Column("id", BigId, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("path", Text, nullable=False),
    Column("created_at", UtcTime, nullable=False),
)

outbox = Table(
    "outbox",
    metadata,
    # Jobs that are not in the queue yet: one list of job ids per row, written together with the jobs.
    Column("id", BigId, primary_key=True),
    Column("job_ids", JsonText, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    # Ids are never reused: a processed row is deleted a moment later.
    sqlite_autoincrement=True,
)
