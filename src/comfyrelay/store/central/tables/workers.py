"""Fleets, workers, and the workflows that each worker can run."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
    true,
)

from comfyrelay.domain.queue.states import RegistrationSource, Stage
from comfyrelay.store.schema import BigId, one_of, partial_index
from comfyrelay.store.schema import central_metadata as metadata
from comfyrelay.store.types import JsonText, UtcTime

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
    # Failed and refused launches before this time do not count.
    Column("launches_reset_at", UtcTime),
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
    # Hash of the key that this worker needs to register again.
    Column("registration_key_hash", Text),
    # Versions of the wire protocol and of the worker.
    Column("protocol", Integer, nullable=False, server_default=text("1")),
    Column("version", Text),
    Column("capabilities", JsonText, nullable=False),
    # The providers in `capabilities` and the part that pages show, stored separately because the rest is long.
    Column("providers", JsonText),
    Column("capability_summary", JsonText),
    # Hash of its node definitions in object storage.
    Column("node_definitions_hash", Text),
    # The last report: its GPUs with name, memory and load, and the hashes of its loaded workflows.
    Column("devices", JsonText),
    Column("warm_hashes", JsonText),
    # Memory of its largest GPU.
    Column("memory_bytes", BigInteger),
    # The workflow slugs to which the worker restricts itself; null: all workflows of its fleet.
    Column("narrowed_to", JsonText),
    Column("max_concurrency", Integer, nullable=False),
    Column("current_load", Integer, nullable=False, server_default=text("0")),
    Column("is_approved", Boolean, nullable=False, server_default=true()),
    Column("is_draining", Boolean, nullable=False, server_default=false()),
    Column("registration_source", Text, nullable=False, server_default=RegistrationSource.FLEET),
    Column("capacity_type", Text),
    Column("instance_type", Text),
    # Since when and why it cannot run jobs; null: it can. The time is `created_at` until its ComfyUI has started once.
    Column("unavailable_since", UtcTime),
    Column("unavailable_reason", Text),
    Column("last_seen_at", UtcTime, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    one_of("stage", Stage),
    one_of("registration_source", RegistrationSource),
    CheckConstraint("max_concurrency >= 1", name="max_concurrency"),
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
    # The last log lines of a worker, as requested by an administrator; deleted after an hour.
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
    # The last failure, for operators.
    Column("reason", Text),
    # A block for running out of memory also ends when ComfyUI restarts.
    Column("is_out_of_memory", Boolean, nullable=False, server_default=false()),
)

workflow_requirements = Table(
    "workflow_requirements",
    metadata,
    # Requirements of jobs with this hash, kept as long as there are such jobs, so that new workers can be checked too.
    Column("workflow_hash", Text, primary_key=True),
    Column("node_types", JsonText, nullable=False),
    Column("models", JsonText, nullable=False),
    Column("used_at", UtcTime, nullable=False),
)

worker_missing_requirements = Table(
    "worker_missing_requirements",
    metadata,
    # Only workers that are known to lack a requirement, and therefore get no job with this hash.
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
    Column("unreported", JsonText, nullable=False),
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
