"""Workflows and effects."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Integer,
    Table,
    Text,
    false,
    text,
    true,
)

from comfyrelay.domain.queue.states import Provider, WorkflowKind
from comfyrelay.store.schema import BigId, one_of, partial_index
from comfyrelay.store.schema import central_metadata as metadata
from comfyrelay.store.types import JsonText, UtcTime

workflows = Table(
    "workflows",
    metadata,
    Column("id", BigId, primary_key=True),
    Column("slug", Text, nullable=False),
    Column("name", Text, nullable=False),
    # Set for a private workflow, such as a graph that a tenant has submitted.
    Column("tenant_id", Text, ForeignKey("tenants.id")),
    # The name under which a private workflow was added. It may have been renamed since.
    Column("added_as", Text),
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
    # Whether its models are kept loaded on the ComfyUI that runs it, which then avoids other workflows.
    Column("keep_loaded", Boolean, nullable=False, server_default=false()),
    # Whether it was created only for the graph of submitted jobs. It is removed after the last of these jobs.
    Column("is_unlisted", Boolean, nullable=False, server_default=false()),
    # The nodes that an editor file waits for before it can be converted; `graph_path` is that file.
    Column("waiting", JsonText),
    Column("created_at", UtcTime, nullable=False),
    Column("updated_at", UtcTime, nullable=False),
    # The row remains for finished dispatches. The slug can be reused.
    Column("deleted_at", UtcTime),
    one_of("kind", WorkflowKind),
    one_of("provider", Provider),
    partial_index("uq_workflows_slug", "slug", where="deleted_at IS NULL", unique=True),
    partial_index("ix_workflows_waiting", "id", where="waiting IS NOT NULL AND deleted_at IS NULL"),
    partial_index("ix_workflows_unlisted", "id", where="is_unlisted AND deleted_at IS NULL"),
    # Ids are never reused: jobs may refer to a deleted workflow.
    sqlite_autoincrement=True,
)

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
    # The price; with a formula, the minimum price.
    Column("credits_cost", BigInteger, nullable=False),
    Column("price_formula", Text),
    Column("max_credits_cost", BigInteger),
    Column("is_active", Boolean, nullable=False, server_default=true()),
    Column("last_processing_time_seconds", Float),
    # Maximum wait before a job may burst. The shortest limit of effect, tenant and job applies.
    Column("max_wait_seconds", Integer),
    # Workers stop runs that take longer.
    Column("max_run_seconds", Integer, nullable=False, server_default=text("1800")),
    # The description for customers, and the heading under which they find the effect.
    Column("description", Text),
    Column("category", Text),
    # Effects are listed by position, and by age if positions are equal.
    Column("position", Integer, nullable=False, server_default=text("0")),
    # An example output, and the input from which it was made: images or videos in object storage.
    Column("preview_path", Text),
    Column("before_path", Text),
    Column("created_at", UtcTime, nullable=False),
    Column("updated_at", UtcTime, nullable=False),
    CheckConstraint("credits_cost >= 0", name="credits_cost"),
    CheckConstraint("(price_formula IS NULL) = (max_credits_cost IS NULL)", name="formula_with_maximum"),
    CheckConstraint("max_credits_cost >= credits_cost", name="max_credits_cost"),
    CheckConstraint("max_run_seconds >= 1", name="max_run_seconds"),
    # Ids are never reused: jobs may refer to a deleted effect.
    sqlite_autoincrement=True,
)
