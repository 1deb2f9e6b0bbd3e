"""Machines, autoscaling decisions, job durations, usage and bursts."""

from sqlalchemy import BigInteger, Column, Float, ForeignKey, Index, Integer, Table, Text, text

from comfyrelay.domain.queue.states import Stage
from comfyrelay.store.schema import BigId, one_of, partial_index
from comfyrelay.store.schema import central_metadata as metadata
from comfyrelay.store.types import JsonText, UtcTime

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
    partial_index("ix_machines_present", "fleet_id", where="ended_at IS NULL"),
    partial_index("ix_machines_worker", "worker_id", where="worker_id IS NOT NULL"),
)

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
    # The leader among several processes, which must renew its term in time.
    Column("name", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    # Grows with each leader, so that writes of earlier leaders are refused.
    Column("term", BigInteger, nullable=False),
    Column("expires_at", UtcTime, nullable=False),
)

cursors = Table(
    "cursors",
    metadata,
    # Read positions of consumers.
    Column("name", Text, primary_key=True),
    Column("position", BigInteger, nullable=False),
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
    # Usage per day: seconds of successful and of failed leases, the seconds of both on machines without a price, and
    # the cost of the others.
    Column("day", Text, primary_key=True),
    Column("fleet_id", BigInteger, ForeignKey("fleets.id", ondelete="CASCADE"), primary_key=True),
    Column("workflow_id", BigInteger, primary_key=True),
    Column("tenant_id", Text, primary_key=True),
    # 0 for jobs without an effect.
    Column("effect_id", BigInteger, primary_key=True),
    Column("jobs", BigInteger, nullable=False),
    Column("busy_seconds", Float, nullable=False),
    Column("lost_seconds", Float, nullable=False),
    Column("unpriced_seconds", Float, nullable=False),
    Column("cost", Float, nullable=False),
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
    # When it finished or returned. The expected cost counts until then, the actual cost for one hour afterwards.
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
