"""Who runs jobs: fleets, their workers, and what happened to them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from comfyrelay.domain.autoscaling.spec import MachineSpec, ScalingSpec
from comfyrelay.domain.autoscaling.spec_json import machines_from_json, scaling_from_json


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetRecord:
    id: int
    slug: str
    stage: str
    name: str
    max_workers: int | None
    created_at: datetime
    # as they are stored; null: nobody has said anything of them
    machines: Mapping[str, Any] | None = None
    scaling: Mapping[str, Any] | None = None

    @property
    def is_scaled(self) -> bool:
        """Whether somebody has said what its machines are, or how many there should be."""
        return self.machines is not None or self.scaling is not None

    @property
    def machine_spec(self) -> MachineSpec:
        return machines_from_json(self.machines)

    @property
    def scaling_spec(self) -> ScalingSpec:
        scaling = scaling_from_json(self.scaling)
        unreadable = self.machine_spec.unreadable
        return scaling if unreadable is None else replace(scaling, is_paused=True, unreadable=unreadable)


@dataclass(frozen=True, kw_only=True, slots=True)
class Worker:
    worker_id: str
    fleet_id: int
    stage: str
    registration_source: str
    display_name: str | None
    max_concurrency: int
    current_load: int
    narrowed_to: Sequence[str] | None
    is_approved: bool
    is_draining: bool
    last_seen_at: datetime
    capabilities: Mapping[str, Any]
    token_hash: str | None
    registration_key_hash: str | None
    protocol: int
    version: str | None
    instance_type: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkflowWorker:
    """A worker that has a workflow, as far as waiting for it is concerned."""

    worker_id: str
    max_concurrency: int
    leases: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedWorker:
    worker_id: str
    display_name: str | None
    fleet_slug: str
    stage: str
    state: str
    leases: int
    max_concurrency: int
    is_approved: bool
    is_draining: bool
    registration_source: str
    capacity_type: str | None
    instance_type: str | None
    protocol: int
    version: str | None
    last_seen_at: datetime
    created_at: datetime
    # how many workflows it is kept from at the moment
    blocked: int
    devices: Sequence[Mapping[str, Any]] | None
    warm_hashes: Sequence[str] | None
    # what it said of its servers when it registered
    comfyui: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerJobRecord:
    """A job that a worker has."""

    dispatch_id: int
    job_id: str
    tenant_id: str
    worker_id: str
    workflow_slug: str
    leased_at: datetime
    is_prefetch: bool
    progress: Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Registration:
    """How a worker was let in: with the `secret` of its stage, an `identity_document`, or by its `desk`; and who has
    approved or revoked it since, if anybody."""

    proof: str
    decision: str | None = None
    decided_by: str | None = None
    decided_at: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerMachine:
    """The machine that was ordered for a worker."""

    key: str
    provider_id: str | None
    instance_type: str | None
    price_per_hour: float | None
    ordered_at: datetime
    launched_at: datetime | None
    registered_at: datetime | None
    ending_at: datetime | None
    ended_at: datetime | None
    reason: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class LackedHash:
    """What a worker is known to lack of what jobs of a hash need."""

    workflow_hash: str
    node_types: Sequence[str]
    models: Sequence[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockedHash:
    workflow_hash: str
    failure_count: int
    blocked_until: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Equipped:
    """A worker and what it says it has, as JSON text: it is long, and many say the same."""

    worker_id: str
    fleet_slug: str
    stage: str
    report: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NewAuditEntry:
    worker_id: str
    event: str
    dispatch_id: int | None = None
    data: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditRecord:
    """An entry as it was written down."""

    id: int
    created_at: datetime
    worker_id: str
    event: str
    dispatch_id: int | None
    data: dict[str, Any] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseAttempt:
    """A lease of a dispatch, and what came of it."""

    epoch: int
    attempt: int
    worker_id: str
    leased_at: datetime
    ended_at: datetime | None
    outcome: str | None
    ended_by: str | None
    reason: str | None
    status_after: str | None
    cost: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class BurstRecord:
    """A job that went to the cloud: why, what that should cost, and what became of it."""

    id: int
    dispatch_id: int
    workflow_id: int
    stage: str
    created_at: datetime
    ended_at: datetime | None
    expected_cost_micros: int
    cost_micros: int
    reason: str
    back_reason: str | None
    seen: Mapping[str, Any]
