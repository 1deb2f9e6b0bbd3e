"""The dispatch queue, its leases, and the outbox to the shards."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    Table,
    Text,
    UniqueConstraint,
    desc,
    false,
    text,
)

from comfyrelay.domain.queue.states import DispatchStatus, PauseMode, Provider, Stage
from comfyrelay.store.schema import BigId, one_of, partial_index
from comfyrelay.store.schema import central_metadata as metadata
from comfyrelay.store.types import JsonText, UtcTime

ai_job_dispatches = Table(
    "ai_job_dispatches",
    metadata,
    # Fixed-width columns first, which avoids alignment padding.
    Column("id", BigId, primary_key=True),
    Column("workflow_id", BigInteger, ForeignKey("workflows.id"), nullable=False),
    Column("effect_id", BigInteger),
    Column("rank", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False, server_default=text("0")),
    Column("version", BigInteger, nullable=False, server_default=text("0")),
    Column("available_at", UtcTime, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("leased_at", UtcTime),
    Column("lease_expires_at", UtcTime),
    Column("finished_at", UtcTime),
    Column("cancel_requested_at", UtcTime),
    Column("pause_requested_at", UtcTime),
    Column("release_requested_at", UtcTime),
    Column("passed_over_at", UtcTime),
    # Failures before this time do not count towards a hold of the batch.
    Column("resumed_at", UtcTime),
    # The prices of its workflow when it was queued, the cost of its leases, and the expected cost of its burst. The
    # last is null unless it went to the cloud, which happens at most once.
    Column("self_hosted_micros_per_second", BigInteger),
    Column("cloud_micros_per_second", BigInteger),
    Column("cost_micros", BigInteger, nullable=False, server_default=text("0")),
    Column("expected_cost_micros", BigInteger),
    Column("duration_seconds", Float),
    # The last processing time of such a job when it was leased, to estimate the progress of workers that report none.
    Column("expected_seconds", Float),
    Column("max_wait_seconds", Integer),
    Column("priority", Integer, nullable=False, server_default=text("0")),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("max_attempts", Integer, nullable=False),
    Column("deferrals", Integer, nullable=False, server_default=text("0")),
    Column("is_prefetch", Boolean, nullable=False, server_default=false()),
    Column("status", Text, nullable=False, server_default=DispatchStatus.QUEUED),
    Column("stage", Text, nullable=False),
    Column("provider", Text, nullable=False),
    Column("tenant_id", Text, nullable=False),
    Column("tenant_job_id", Text, nullable=False),
    Column("shard", Text, nullable=False),
    Column("batch_id", Text),
    Column("workflow_hash", Text, nullable=False),
    # The only worker that may lease it.
    Column("only_worker", Text),
    Column("worker_id", Text),
    Column("lease_token", Text),
    Column("lease_request_id", Text),
    Column("pause_mode", Text),
    Column("last_error", Text),
    # The workers that it ran out of memory on, with the memory of their GPUs, as a JSON object. They may not lease it.
    Column("ran_out_on", Text),
    Column("progress", JsonText),
    UniqueConstraint("tenant_id", "tenant_job_id"),
    one_of("status", DispatchStatus),
    one_of("stage", Stage),
    one_of("provider", Provider),
    one_of("pause_mode", PauseMode, nullable=True),
    CheckConstraint(
        "(status = 'leased') = (lease_token IS NOT NULL)"
        " AND (status = 'leased') = (lease_expires_at IS NOT NULL)"
        " AND (status = 'leased') = (worker_id IS NOT NULL)"
        " AND (status = 'leased') = (leased_at IS NOT NULL)",
        name="lease_iff_leased",
    ),
    CheckConstraint(
        "status = 'leased' OR (cancel_requested_at IS NULL AND pause_requested_at IS NULL"
        " AND release_requested_at IS NULL)",
        name="requests_only_while_leased",
    ),
    CheckConstraint(
        "(finished_at IS NOT NULL) = (status IN ('completed', 'failed', 'canceled'))",
        name="finished_iff_terminal",
    ),
    CheckConstraint("attempts >= 0 AND max_attempts >= 1 AND epoch >= 0 AND version >= 0", name="counts"),
    partial_index("ix_ai_job_dispatches_leased", "worker_id", where="status = 'leased'"),
    Index(
        "ix_ai_job_dispatches_prefetched",
        "id",
        postgresql_where=text("status = 'leased' AND is_prefetch"),
        sqlite_where=text("status = 'leased' AND is_prefetch = 1"),
    ),
    partial_index(
        "ix_ai_job_dispatches_waiting_tenant", "tenant_id", "priority", "rank", where="status IN ('queued', 'paused')"
    ),
    # Few dispatches are pinned to one worker.
    partial_index(
        "ix_ai_job_dispatches_only_worker", "only_worker", where="status = 'queued' AND only_worker IS NOT NULL"
    ),
    # Few dispatches have run out of memory.
    partial_index("ix_ai_job_dispatches_ran_out", "id", where="status = 'queued' AND ran_out_on IS NOT NULL"),
    partial_index("ix_ai_job_dispatches_batch", "batch_id", "finished_at", where="batch_id IS NOT NULL"),
    # Few rows are in these states, so lists of them skip the completed ones.
    partial_index("ix_ai_job_dispatches_stopped", "status", "id", where="status IN ('failed', 'canceled', 'paused')"),
    # Recent failures are queried often, and their total grows. `finished_at IS NOT NULL` is always true for them. The
    # condition keeps the planner from using this index for sorted lists, which have their own.
    partial_index("ix_ai_job_dispatches_failed", "finished_at", where="status = 'failed' AND finished_at IS NOT NULL"),
    partial_index(
        "ix_ai_job_dispatches_exhausted", "id", where="status IN ('queued', 'paused') AND attempts >= max_attempts"
    ),
    # Every heartbeat writes lease_expires_at and progress. Neither is indexed, and pages keep free space, so heartbeats
    # are HOT updates.
    postgresql_with={"fillfactor": "50"},
)

partial_index(
    "ix_ai_job_dispatches_queued",
    ai_job_dispatches.c.stage,
    ai_job_dispatches.c.provider,
    ai_job_dispatches.c.workflow_id,
    desc(ai_job_dispatches.c.priority),
    ai_job_dispatches.c.rank,
    ai_job_dispatches.c.id,
    where="status = 'queued'",
)

dispatch_leases = Table(
    "dispatch_leases",
    metadata,
    # The history of leases. It answers repeated poll, complete and fail calls after the dispatch has moved on.
    Column("lease_token", Text, primary_key=True),
    # Dispatches are never deleted, so a foreign key would only cost a lookup per lease.
    Column("dispatch_id", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("worker_id", Text, nullable=False),
    Column("request_id", Text),
    Column("leased_at", UtcTime, nullable=False),
    Column("ended_at", UtcTime),
    Column("outcome", Text),
    Column("ended_by", Text),
    Column("reason", Text),
    Column("status_after", Text),
    # Its machine cost, set when it is added to `usage`; null: not added yet.
    Column("cost", Float),
    UniqueConstraint("dispatch_id", "epoch"),
    Index(None, "worker_id", "dispatch_id"),
    partial_index("uq_dispatch_leases_request", "worker_id", "request_id", where="request_id IS NOT NULL", unique=True),
    # Each row is written at the start and at the end; free space on the page makes the second a HOT update.
    postgresql_with={"fillfactor": "50"},
)

outbox = Table(
    "outbox",
    metadata,
    # Updates that a shard must still apply: one list per row, written together with the moves that they describe.
    Column("id", BigId, primary_key=True),
    Column("shard", Text, nullable=False),
    Column("updates", JsonText, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Index(None, "shard", "id"),
    # Ids are never reused: a processed row is deleted a moment later.
    sqlite_autoincrement=True,
)
