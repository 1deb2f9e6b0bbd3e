"""Records of fleets, workers, their leases and audit entries."""

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
    # Stored settings. `None` if the operator has set none.
    machines: Mapping[str, Any] | None = None
    autoscaling: Mapping[str, Any] | None = None
    # Failed and refused launches before this time do not count: the operator has removed their cause.
    launches_reset_at: datetime | None = None

    @property
    def is_scaled(self) -> bool:
        """Whether the operator has configured machines or autoscaling."""
        return self.machines is not None or self.autoscaling is not None

    @property
    def machine_spec(self) -> MachineSpec:
        return machines_from_json(self.machines)

    @property
    def scaling_spec(self) -> ScalingSpec:
        spec = scaling_from_json(self.autoscaling)
        unreadable = self.machine_spec.unreadable
        return spec if unreadable is None else replace(spec, is_paused=True, unreadable=unreadable)


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
    """An online worker that has a workflow."""

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
    # Number of workflows it is blocked from.
    blocked: int
    devices: Sequence[Mapping[str, Any]] | None
    warm_hashes: Sequence[str] | None
    # Its servers as reported at registration.
    comfyui: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerJobRecord:
    """A job that a worker has leased."""

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
    """How a worker registered, and who has approved or revoked it since then, if anyone.

    `proof` is `secret` (of its stage), `identity_document` or `desk`.
    """

    proof: str
    decision: str | None = None
    decided_by: str | None = None
    decided_at: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerMachine:
    """The machine launched for a worker."""

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
class UnmetHash:
    """Requirements of a workflow hash that a worker does not meet."""

    workflow_hash: str
    node_types: Sequence[str]
    models: Sequence[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockedHash:
    workflow_hash: str
    failure_count: int
    blocked_until: datetime | None
    reason: str | None
    is_out_of_memory: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerBlock:
    """A worker that currently gets no jobs of a workflow. The slug is unknown if the workflow changed or is gone."""

    worker_id: str
    workflow_hash: str
    workflow_slug: str | None
    failure_count: int
    blocked_until: datetime
    reason: str | None
    is_out_of_memory: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerReport:
    """A worker's capability report as JSON text, because reports are long and often equal."""

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
    id: int
    created_at: datetime
    worker_id: str
    event: str
    dispatch_id: int | None
    data: dict[str, Any] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseAttempt:
    """A lease of a dispatch and its outcome."""

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
    """A job that was moved to the cloud, with its reason, costs and end."""

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
