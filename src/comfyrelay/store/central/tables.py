"""The central schema: accounts, catalogue, workers and the dispatch queue. It contains no private data of tenants."""

from enum import StrEnum
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    desc,
    false,
    text,
    true,
)

from comfyrelay.domain.queue.states import (
    DispatchStatus,
    LinkKind,
    PauseMode,
    Provider,
    RegistrationSource,
    Stage,
    WorkflowKind,
)
from comfyrelay.store.types import JsonText, UtcTime

NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}
metadata = MetaData(naming_convention=NAMES)

# SQLite assigns row ids automatically only to INTEGER PRIMARY KEY.
BigId = BigInteger().with_variant(Integer(), "sqlite")


def one_of(column: str, words: type[StrEnum], *, nullable: bool = False) -> CheckConstraint:
    listed = ", ".join(f"'{word}'" for word in words)
    condition = f"{column} IN ({listed})"
    return CheckConstraint(f"{column} IS NULL OR {condition}" if nullable else condition, name=column)


def partial_index(name: str, *columns: Any, where: str, unique: bool = False) -> Index:
    return Index(name, *columns, unique=unique, postgresql_where=text(where), sqlite_where=text(where))


tenants = Table(
    "tenants",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("shard", Text, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("max_wait_seconds", Integer),
    # Maximum number of queued and running jobs; null: the server's limit.
    Column("max_active_jobs", Integer),
)

users = Table(
    "users",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenants.id"), nullable=False, unique=True),
    Column("email", Text, nullable=False, unique=True),
    Column("name", Text, nullable=False),
    Column("password_hash", Text),
    Column("is_admin", Boolean, nullable=False, server_default=false()),
    Column("created_at", UtcTime, nullable=False),
    # From then on, neither the password nor a token is accepted.
    Column("disabled_at", UtcTime),
)
partial_index("ix_users_admins", users.c.id, where="is_admin")

api_tokens = Table(
    "api_tokens",
    metadata,
    Column("id", Text, primary_key=True),
    Column("user_id", Text, ForeignKey("users.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("name", Text, nullable=False),
    Column("token_hash", Text, nullable=False, unique=True),
    Column("created_at", UtcTime, nullable=False),
    # A browser session is a token that expires.
    Column("expires_at", UtcTime),
    Column("revoked_at", UtcTime),
)

account_links = Table(
    "account_links",
    metadata,
    Column("token_hash", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    # The user whose password it sets; null for the code that creates the first administrator.
    Column("user_id", Text, ForeignKey("users.id", ondelete="CASCADE"), index=True),
    Column("created_at", UtcTime, nullable=False),
    Column("expires_at", UtcTime, nullable=False),
    Column("used_at", UtcTime),
    one_of("kind", LinkKind),
)

workflows = Table(
    "workflows",
    metadata,
    Column("id", BigId, primary_key=True),
    Column("slug", Text, nullable=False),
    Column("name", Text, nullable=False),
    # Set for a private workflow, such as a graph that a tenant has submitted.
    Column("tenant_id", Text, ForeignKey("tenants.id")),
    Column("kind", Text, nullable=False, server_default=WorkflowKind.GRAPH),
    Column("provider", Text, nullable=False, server_default=Provider.SELF_HOSTED),
    # Whether its self-hosted jobs may burst to the cloud: provider `any` in the API.
    Column("may_burst", Boolean, nullable=False, server_default=false()),
    # Money is in millionths of the operator's currency unit.
    Column("self_hosted_micros_per_second", BigInteger),
    Column("cloud_micros_per_second", BigInteger),
    # Cost limit of its bursts per hour.
    Column("burst_micros_per_hour", BigInteger),
    Column("graph_path", Text, nullable=False),
    Column("properties", JsonText, nullable=False),
    Column("output_node_id", Text),
    Column("output_extension", Text, nullable=False),
    Column("output_mime_type", Text, nullable=False),
    Column("is_active", Boolean, nullable=False, server_default=true()),
    # Whether its models stay loaded on the ComfyUI that runs it, which then avoids other workflows.
    Column("keep_loaded", Boolean, nullable=False, server_default=false()),
    # The nodes that an editor file waits for before it can be converted; `graph_path` is that file.
    Column("waiting", JsonText),
    Column("created_at", UtcTime, nullable=False),
    Column("updated_at", UtcTime, nullable=False),
    # The row remains for finished dispatches. The slug can be reused.
    Column("deleted_at", UtcTime),
    one_of("kind", WorkflowKind),
    one_of("provider", Provider),
    # Ids are never reused: jobs may refer to a deleted workflow.
    sqlite_autoincrement=True,
)
partial_index("uq_workflows_slug", workflows.c.slug, where="deleted_at IS NULL", unique=True)
partial_index("ix_workflows_waiting", workflows.c.id, where="waiting IS NOT NULL AND deleted_at IS NULL")

workflow_versions = Table(
    "workflow_versions",
    metadata,
    # Written when the graph, the properties or the output of a workflow change.
    Column("workflow_id", BigInteger, ForeignKey("workflows.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("graph_path", Text, nullable=False),
    Column("properties", JsonText, nullable=False),
    Column("output_node_id", Text),
    Column("output_extension", Text, nullable=False),
    Column("output_mime_type", Text, nullable=False),
    Column("created_at", UtcTime, nullable=False),
)

effects = Table(
    "effects",
    metadata,
    Column("id", BigId, primary_key=True),
    Column("slug", Text, nullable=False, unique=True),
    Column("name", Text, nullable=False),
    Column("workflow_id", BigInteger, ForeignKey("workflows.id"), nullable=False, index=True),
    Column("property_overrides", JsonText, nullable=False),
    # Path in object storage → SHA-256, for the files in the overrides.
    Column("asset_hashes", JsonText, nullable=False),
    Column("credits_cost", BigInteger, nullable=False),
    Column("is_active", Boolean, nullable=False, server_default=true()),
    Column("last_processing_time_seconds", Float),
    # Maximum wait before a job may burst. The strictest limit of effect, tenant and job applies.
    Column("max_wait_seconds", Integer),
    # An example image or video in object storage.
    Column("preview_path", Text),
    Column("created_at", UtcTime, nullable=False),
    Column("updated_at", UtcTime, nullable=False),
    CheckConstraint("credits_cost >= 0", name="credits_cost"),
    # Ids are never reused: jobs may refer to a deleted effect.
    sqlite_autoincrement=True,
)

fleets = Table(
    "fleets",
    metadata,
    Column("id", BigId, primary_key=True),
    Column("slug", Text, nullable=False),
    Column("stage", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("max_workers", Integer),
    # From the last worker that sent node definitions; it may no longer exist.
    Column("node_definitions_hash", Text),
    # The machine and autoscaling specifications (`domain/autoscaling/spec.py`); null: not configured.
    Column("machines", JsonText),
    Column("autoscaling", JsonText),
    Column("created_at", UtcTime, nullable=False),
    UniqueConstraint("stage", "slug"),
    one_of("stage", Stage),
)

workflow_fleets = Table(
    "workflow_fleets",
    metadata,
    Column("fleet_id", BigInteger, ForeignKey("fleets.id", ondelete="CASCADE"), primary_key=True),
    Column("workflow_id", BigInteger, ForeignKey("workflows.id", ondelete="CASCADE"), primary_key=True),
)

workers = Table(
    "workers",
    metadata,
    Column("worker_id", Text, primary_key=True),
    Column("fleet_id", BigInteger, ForeignKey("fleets.id"), nullable=False, index=True),
    Column("stage", Text, nullable=False),
    Column("display_name", Text),
    Column("token_hash", Text, unique=True),
    # Hash of the key with which only this worker can register again.
    Column("registration_key_hash", Text),
    # Versions of the wire protocol and of the worker.
    Column("protocol", Integer, nullable=False, server_default=text("1")),
    Column("version", Text),
    Column("capabilities", JsonText, nullable=False),
    # The providers in `capabilities`, stored separately because the rest is long.
    Column("providers", JsonText),
    # Hash of its node definitions in object storage.
    Column("node_definitions_hash", Text),
    # Last report: its GPUs with name, memory and load, and the hashes of its loaded workflows.
    Column("devices", JsonText),
    Column("warm_hashes", JsonText),
    # Memory of its largest GPU.
    Column("memory_bytes", BigInteger),
    # The workflow slugs that the worker restricts itself to; null: all of its fleet.
    Column("narrowed_to", JsonText),
    Column("max_concurrency", Integer, nullable=False),
    Column("current_load", Integer, nullable=False, server_default=text("0")),
    Column("is_approved", Boolean, nullable=False, server_default=true()),
    Column("is_draining", Boolean, nullable=False, server_default=false()),
    Column("registration_source", Text, nullable=False, server_default=RegistrationSource.FLEET),
    Column("capacity_type", Text),
    Column("instance_type", Text),
    Column("last_seen_at", UtcTime, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    one_of("stage", Stage),
    one_of("registration_source", RegistrationSource),
    CheckConstraint("max_concurrency >= 1", name="max_concurrency"),
)

machines = Table(
    "machines",
    metadata,
    # A machine is recorded before it is ordered, and ordered by its key, so an order can be repeated after a crash.
    Column("key", Text, primary_key=True),
    Column("fleet_id", BigInteger, ForeignKey("fleets.id", ondelete="CASCADE"), nullable=False),
    # Ids of the machine at the provider and of its worker; unknown at first.
    Column("provider_id", Text),
    Column("worker_id", Text),
    Column("instance_type", Text),
    Column("price_per_hour", Float),
    Column("ordered_at", UtcTime, nullable=False),
    Column("launched_at", UtcTime),
    Column("registered_at", UtcTime),
    Column("ending_at", UtcTime),
    Column("ended_at", UtcTime),
    # Why it was terminated, or could not be launched.
    Column("reason", Text),
    Index(None, "fleet_id", "ordered_at"),
)
partial_index("ix_machines_present", machines.c.fleet_id, where="ended_at IS NULL")
partial_index("ix_machines_worker", machines.c.worker_id, where="worker_id IS NOT NULL")

autoscaling_decisions = Table(
    "autoscaling_decisions",
    metadata,
    Column("id", BigId, primary_key=True),
    Column("fleet_id", BigInteger, ForeignKey("fleets.id", ondelete="CASCADE"), nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("policy", Text, nullable=False),
    Column("desired", Integer, nullable=False),
    # Planned launches and terminations, and their outcome.
    Column("launch", JsonText, nullable=False),
    Column("end", JsonText, nullable=False),
    Column("outcome", JsonText, nullable=False),
    Column("reason", Text, nullable=False),
    # The observation: queued work, machines, limits.
    Column("seen", JsonText, nullable=False),
    Index(None, "fleet_id", "id"),
)

leaders = Table(
    "leaders",
    metadata,
    # The leader among several processes. It must renew its term in time.
    Column("name", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    # Grows with each leader, so writes of earlier ones are refused.
    Column("term", BigInteger, nullable=False),
    Column("expires_at", UtcTime, nullable=False),
)

workflow_durations = Table(
    "workflow_durations",
    metadata,
    # Moving average over completed jobs. Effect 0 is the whole workflow.
    Column("workflow_id", BigInteger, ForeignKey("workflows.id", ondelete="CASCADE"), primary_key=True),
    Column("effect_id", BigInteger, primary_key=True),
    Column("jobs", BigInteger, nullable=False),
    Column("mean_seconds", Float, nullable=False),
    Column("updated_at", UtcTime, nullable=False),
)

usage = Table(
    "usage",
    metadata,
    # Usage per day: seconds of successful and of failed leases, and the cost of both.
    Column("day", Text, primary_key=True),
    Column("fleet_id", BigInteger, ForeignKey("fleets.id", ondelete="CASCADE"), primary_key=True),
    Column("workflow_id", BigInteger, primary_key=True),
    Column("tenant_id", Text, primary_key=True),
    Column("jobs", BigInteger, nullable=False),
    Column("busy_seconds", Float, nullable=False),
    Column("lost_seconds", Float, nullable=False),
    Column("cost", Float, nullable=False),
)

cursors = Table(
    "cursors",
    metadata,
    # Read positions of consumers.
    Column("name", Text, primary_key=True),
    Column("position", BigInteger, nullable=False),
)

instance_identities = Table(
    "instance_identities",
    metadata,
    # Instances that registered with their identity document. Every program on the machine can read the document, so
    # only the first worker may use it again, identified by its key.
    Column("instance_id", Text, primary_key=True),
    Column("account_id", Text, nullable=False),
    Column("registration_key_hash", Text, nullable=False),
    Column("created_at", UtcTime, nullable=False),
)

worker_logs = Table(
    "worker_logs",
    metadata,
    # The last log lines of a worker, on request of an administrator; deleted after an hour.
    Column("worker_id", Text, ForeignKey("workers.worker_id", ondelete="CASCADE"), primary_key=True),
    Column("lines", JsonText, nullable=False),
    Column("received_at", UtcTime, nullable=False),
)

worker_workflows = Table(
    "worker_workflows",
    metadata,
    Column("worker_id", Text, ForeignKey("workers.worker_id", ondelete="CASCADE"), primary_key=True),
    Column("workflow_id", BigInteger, ForeignKey("workflows.id", ondelete="CASCADE"), primary_key=True),
    Index(None, "workflow_id"),
)

workflow_blocks = Table(
    "workflow_blocks",
    metadata,
    Column("worker_id", Text, ForeignKey("workers.worker_id", ondelete="CASCADE"), primary_key=True),
    Column("workflow_hash", Text, primary_key=True),
    Column("failure_count", Integer, nullable=False),
    Column("blocked_until", UtcTime),
)

workflow_requirements = Table(
    "workflow_requirements",
    metadata,
    # Requirements of jobs with this hash, kept while there are any, so that new workers can be checked too.
    Column("workflow_hash", Text, primary_key=True),
    Column("node_types", JsonText, nullable=False),
    Column("models", JsonText, nullable=False),
    Column("used_at", UtcTime, nullable=False),
)

worker_missing_requirements = Table(
    "worker_missing_requirements",
    metadata,
    # Only workers that are known to miss a requirement: they get no job with this hash.
    Column("worker_id", Text, ForeignKey("workers.worker_id", ondelete="CASCADE"), primary_key=True),
    Column(
        "workflow_hash",
        Text,
        ForeignKey("workflow_requirements.workflow_hash", ondelete="CASCADE"),
        primary_key=True,
    ),
    Column("node_types", JsonText, nullable=False),
    Column("models", JsonText, nullable=False),
    # Kinds of requirements that the worker does not report.
    Column("silent", JsonText, nullable=False),
    Index(None, "workflow_hash"),
)

workflow_memory = Table(
    "workflow_memory",
    metadata,
    # The memory of the largest GPU on which a job ran out of memory while it had the GPU to itself.
    Column("workflow_id", BigInteger, ForeignKey("workflows.id", ondelete="CASCADE"), primary_key=True),
    Column("workflow_hash", Text, primary_key=True),
    Column("ran_out_bytes", BigInteger, nullable=False),
    Column("updated_at", UtcTime, nullable=False),
)

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
    # The prices of its workflow when it was queued, the cost of its leases, and the expected cost of its burst. The
    # last is null unless it went to the cloud, which happens at most once.
    Column("self_hosted_micros_per_second", BigInteger),
    Column("cloud_micros_per_second", BigInteger),
    Column("cost_micros", BigInteger, nullable=False, server_default=text("0")),
    Column("expected_cost_micros", BigInteger),
    # The memory of the GPU that was too small, if it was requeued for a larger one, which happens at most once.
    Column("ran_out_bytes", BigInteger),
    Column("duration_seconds", Float),
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
    # Only this worker may lease it.
    Column("only_worker", Text),
    Column("worker_id", Text),
    Column("lease_token", Text),
    Column("lease_request_id", Text),
    Column("pause_mode", Text),
    Column("last_error", Text),
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
partial_index("ix_ai_job_dispatches_leased", ai_job_dispatches.c.worker_id, where="status = 'leased'")
Index(
    "ix_ai_job_dispatches_prefetched",
    ai_job_dispatches.c.id,
    postgresql_where=text("status = 'leased' AND is_prefetch"),
    sqlite_where=text("status = 'leased' AND is_prefetch = 1"),
)
partial_index(
    "ix_ai_job_dispatches_waiting_tenant",
    ai_job_dispatches.c.tenant_id,
    ai_job_dispatches.c.priority,
    ai_job_dispatches.c.rank,
    where="status IN ('queued', 'paused')",
)
# Few dispatches are pinned to one worker.
partial_index(
    "ix_ai_job_dispatches_only_worker",
    ai_job_dispatches.c.only_worker,
    where="status = 'queued' AND only_worker IS NOT NULL",
)
partial_index("ix_ai_job_dispatches_batch", ai_job_dispatches.c.batch_id, where="batch_id IS NOT NULL")
# Few rows are in these states, so lists of them skip the completed ones.
partial_index(
    "ix_ai_job_dispatches_stopped",
    ai_job_dispatches.c.status,
    ai_job_dispatches.c.id,
    where="status IN ('failed', 'canceled', 'paused')",
)
# Recent failures are queried often, and their total grows. `finished_at IS NOT NULL` is always true for them; it keeps
# the planner from using this index for sorted lists, which have their own.
partial_index(
    "ix_ai_job_dispatches_failed",
    ai_job_dispatches.c.finished_at,
    where="status = 'failed' AND finished_at IS NOT NULL",
)
partial_index(
    "ix_ai_job_dispatches_exhausted",
    ai_job_dispatches.c.id,
    where="status IN ('queued', 'paused') AND attempts >= max_attempts",
)

bursts = Table(
    "bursts",
    metadata,
    # One row per job that went to the cloud: the reason, the expected cost and the actual cost.
    Column("id", BigId, primary_key=True),
    # A job bursts at most once. No foreign key, as in `dispatch_leases`.
    Column("dispatch_id", BigInteger, nullable=False, unique=True),
    Column("workflow_id", BigInteger, nullable=False),
    Column("stage", Text, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    # When it finished or returned. The expected cost counts until then, the actual cost for one hour after it.
    Column("ended_at", UtcTime),
    Column("expected_cost_micros", BigInteger, nullable=False),
    Column("cost_micros", BigInteger, nullable=False, server_default=text("0")),
    Column("reason", Text, nullable=False),
    # Why it returned, if it did.
    Column("back_reason", Text),
    # The observation: both waits, and the accepted wait.
    Column("seen", JsonText, nullable=False),
    one_of("stage", Stage),
    Index(None, "ended_at"),
)

dispatch_leases = Table(
    "dispatch_leases",
    metadata,
    # The history of leases. It answers a repeated poll, complete or fail after the dispatch has moved on.
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

worker_audit_logs = Table(
    "worker_audit_logs",
    metadata,
    Column("id", BigId, primary_key=True),
    Column("created_at", UtcTime, nullable=False),
    Column("dispatch_id", BigInteger),
    Column("worker_id", Text, nullable=False),
    Column("event", Text, nullable=False),
    Column("data", JsonText),
    Index(None, "worker_id", "id"),
    partial_index("ix_worker_audit_logs_dispatch", "dispatch_id", "id", where="dispatch_id IS NOT NULL"),
    partial_index("ix_worker_audit_logs_decisions", "worker_id", "id", where="event IN ('approve', 'revoke')"),
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

payment_events = Table(
    "payment_events",
    metadata,
    Column("provider_event_id", Text, primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenants.id"), nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("currency", Text),
    Column("created_at", UtcTime, nullable=False),
)

samples = Table(
    "samples",
    metadata,
    # One row per minute since 1970: the counts of all processes, and the state as one of them saw it (null: none did).
    Column("minute", BigInteger, primary_key=True, autoincrement=False),
    Column("waiting", Integer),
    Column("oldest_wait_seconds", Float),
    Column("busy", Integer),
    Column("slots", Integer),
    Column("workers", Integer),
    Column("begun", BigInteger, nullable=False, server_default=text("0")),
    # Total wait of the started jobs.
    Column("waited_seconds", Float, nullable=False, server_default=text("0")),
    Column("done", BigInteger, nullable=False, server_default=text("0")),
    Column("failed", BigInteger, nullable=False, server_default=text("0")),
    Column("tokens", BigInteger, nullable=False, server_default=text("0")),
)

reconcile_runs = Table(
    "reconcile_runs",
    metadata,
    Column("id", BigId, primary_key=True),
    Column("started_at", UtcTime, nullable=False),
    # Null: it is running, or its process has exited.
    Column("ended_at", UtcTime),
    Column("jobs", BigInteger),
    Column("findings", JsonText),
    # Total number of findings; only the first are stored.
    Column("count", Integer),
    Column("shards_down", JsonText),
    # Why it failed.
    Column("problem", Text),
)
