"""The tenant schema: everything private. Every row carries its `tenant_id`; a pool holds many tenants."""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from comfyrelay.domain.states import JobStatus, Outcome, Provider, Stage, TransactionType, VideoStatus
from comfyrelay.store.central import NAMES, BigId, one_of
from comfyrelay.store.types import JsonText, UtcTime

metadata = MetaData(naming_convention=NAMES)

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
    Column("original_filename", Text),
    Column("metadata", JsonText),
    Column("created_at", UtcTime, nullable=False),
    UniqueConstraint("disk", "path"),
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
    Column("created_at", UtcTime, nullable=False),
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
    # The newest job of its chain of retries: the one whose outcome the video shows.
    Column("job_id", Text),
    Column("original_file_id", Text, ForeignKey("files.id")),
    Column("processed_file_id", Text, ForeignKey("files.id")),
    Column("processing_details", JsonText),
    Column("created_at", UtcTime, nullable=False),
    Column("updated_at", UtcTime, nullable=False),
    one_of("status", VideoStatus),
    Index(None, "tenant_id", "id"),
    # A video changes with its job's state, and no index knows that: with room on the page it is a HOT update.
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
    # The place in its batch. The queue keeps to it.
    Column("item_no", Integer, nullable=False, server_default=text("0")),
    Column("video_id", Text, ForeignKey("videos.id")),
    Column("input_file_id", Text, ForeignKey("files.id")),
    Column("output_file_id", Text, ForeignKey("files.id")),
    Column("retry_of", Text, ForeignKey("ai_jobs.id")),
    Column("idempotency_key", Text, nullable=False),
    Column("request_digest", Text, nullable=False),
    Column("input_payload", JsonText, nullable=False),
    Column("webhook_url", Text),
    Column("reserved_tokens", BigInteger, nullable=False),
    Column("provider_job_id", Text),
    Column("error_message", Text),
    Column("error_detail", Text),
    # The version of the dispatch up to which its messages have been applied here.
    Column("dispatch_version", BigInteger, nullable=False, server_default=text("0")),
    Column("event_seq", Integer, nullable=False, server_default=text("0")),
    Column("available_at", UtcTime, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("started_at", UtcTime),
    Column("completed_at", UtcTime),
    UniqueConstraint("tenant_id", "idempotency_key"),
    one_of("status", JobStatus),
    one_of("provider", Provider),
    one_of("stage", Stage),
    CheckConstraint("reserved_tokens >= 0", name="reserved_tokens"),
    CheckConstraint(
        "(completed_at IS NOT NULL) = (status IN ('completed', 'failed', 'canceled'))",
        name="completed_iff_terminal",
    ),
    postgresql_with={"fillfactor": "80"},
)
Index("ix_ai_jobs_tenant_newest", ai_jobs.c.tenant_id, ai_jobs.c.id)
# Not by status: a job that starts must not have to be indexed anew.
Index(
    "ix_ai_jobs_active",
    ai_jobs.c.tenant_id,
    ai_jobs.c.user_id,
    postgresql_where=text("completed_at IS NULL"),
    sqlite_where=text("completed_at IS NULL"),
)
# A job is retried at most once; the retry may be retried in turn, so a chain never forks.
Index(
    "uq_ai_jobs_retry_of",
    ai_jobs.c.retry_of,
    unique=True,
    postgresql_where=text("retry_of IS NOT NULL"),
    sqlite_where=text("retry_of IS NOT NULL"),
)
Index(
    "ix_ai_jobs_batch",
    ai_jobs.c.batch_id,
    postgresql_where=text("batch_id IS NOT NULL"),
    sqlite_where=text("batch_id IS NOT NULL"),
)

job_attempts = Table(
    "job_attempts",
    metadata,
    Column("job_id", Text, ForeignKey("ai_jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("epoch", BigInteger, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("number", Integer, nullable=False),
    Column("worker_id", Text),
    Column("started_at", UtcTime),
    Column("ended_at", UtcTime),
    Column("outcome", Text),
    Column("fault", Text),
    Column("error", Text),
    Column("seed", BigInteger),
    Column("provider_job_id", Text),
    one_of("outcome", Outcome, nullable=True),
)

job_events = Table(
    "job_events",
    metadata,
    Column("job_id", Text, ForeignKey("ai_jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("seq", Integer, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("data", JsonText, nullable=False),
    Column("created_at", UtcTime, nullable=False),
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

token_wallets = Table(
    "token_wallets",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("balance", BigInteger, nullable=False, server_default=text("0")),
    Column("updated_at", UtcTime, nullable=False),
    CheckConstraint("balance >= 0", name="balance"),
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
    Column("created_at", UtcTime, nullable=False),
    UniqueConstraint("tenant_id", "job_id", "type"),
    one_of("type", TransactionType),
    CheckConstraint(
        "(type = 'JOB_RESERVE' AND amount <= 0) OR (type = 'JOB_CONSUME' AND amount = 0)"
        " OR (type = 'JOB_REFUND' AND amount >= 0) OR (type = 'PAYMENT_CREDIT' AND amount > 0)"
        " OR type = 'ADJUSTMENT'",
        name="amount",
    ),
    CheckConstraint("type NOT LIKE 'JOB_%' OR job_id IS NOT NULL", name="job_of_job_type"),
    Index(None, "tenant_id", "id"),
)
Index(
    "uq_token_transactions_settlement",
    token_transactions.c.tenant_id,
    token_transactions.c.job_id,
    unique=True,
    postgresql_where=text("type IN ('JOB_CONSUME', 'JOB_REFUND')"),
    sqlite_where=text("type IN ('JOB_CONSUME', 'JOB_REFUND')"),
)
Index(
    "uq_token_transactions_reference",
    token_transactions.c.tenant_id,
    token_transactions.c.reference,
    unique=True,
    postgresql_where=text("reference IS NOT NULL"),
    sqlite_where=text("reference IS NOT NULL"),
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

outbox = Table(
    "outbox",
    metadata,
    # Jobs that the queue has yet to hear of: each row one list of job ids, written with the jobs.
    Column("id", BigId, primary_key=True),
    Column("job_ids", JsonText, nullable=False),
    Column("created_at", UtcTime, nullable=False),
)
