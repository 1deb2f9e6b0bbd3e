"""A dispatch, and its change by one event."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from comfyrelay.domain.queue.states import TERMINAL_DISPATCH, DispatchStatus, JobEventType, Outcome, Provider
from comfyrelay.errors import Fault


class Dispatch(NamedTuple):
    """A row of the queue. A named tuple, because thousands are created and changed per second."""

    id: int
    tenant_id: str
    tenant_job_id: str
    shard: str
    workflow_id: int
    workflow_hash: str
    effect_id: int | None
    provider: str
    stage: str
    status: str
    priority: int
    rank: int
    attempts: int
    max_attempts: int
    epoch: int
    version: int
    deferrals: int
    batch_id: str | None
    worker_id: str | None
    lease_token: str | None
    lease_request_id: str | None
    leased_at: datetime | None
    lease_expires_at: datetime | None
    is_prefetch: bool
    cancel_requested_at: datetime | None
    pause_requested_at: datetime | None
    pause_mode: str | None
    release_requested_at: datetime | None
    available_at: datetime
    created_at: datetime
    finished_at: datetime | None
    duration_seconds: float | None
    last_error: str | None
    max_wait_seconds: int | None = None
    # Prices when it was queued, in millionths of the currency unit.
    self_hosted_micros_per_second: int | None = None
    cloud_micros_per_second: int | None = None
    # Cost of all leases so far.
    cost_micros: int = 0
    # Estimated cost of the cloud run; `None` if it never went to the cloud.
    expected_cost_micros: int | None = None
    # The only worker that may lease it.
    only_worker: str | None = None
    # The workers that it ran out of memory on, with the memory of their GPUs, as JSON.
    ran_out_on: str | None = None
    # The last time that a user resumed it.
    resumed_at: datetime | None = None

    @property
    def is_terminal(self) -> bool:
        return self.status in TERMINAL_DISPATCH

    @property
    def is_leased(self) -> bool:
        return self.status == DispatchStatus.LEASED

    @property
    def has_burst(self) -> bool:
        """Whether it ever went to the cloud because of a long wait."""
        return self.expected_cost_micros is not None

    @property
    def micros_per_second(self) -> int | None:
        """Price per second at its current provider."""
        is_cloud = self.provider == Provider.CLOUD
        return self.cloud_micros_per_second if is_cloud else self.self_hosted_micros_per_second

    @property
    def memory_failures(self) -> dict[str, int | None]:
        """The memory of the GPUs that it ran out of memory on, by worker; `None` if unknown."""
        return json.loads(self.ran_out_on) if self.ran_out_on else {}

    @property
    def attempts_used_up(self) -> bool:
        return self.attempts >= self.max_attempts


@dataclass(frozen=True, kw_only=True, slots=True)
class Transition:
    """A dispatch before and after an event, with the data for the shard. `lease_outcome` is set if a lease ended."""

    before: Dispatch
    after: Dispatch
    event_type: JobEventType
    lease_outcome: Outcome | None = None
    error: str | None = None
    fault: Fault | None = None
    reason: str | None = None
    # Why this failure holds the rest of the batch.
    hold: str | None = None
    # Failed jobs of the batch that are rerun with it.
    held_with: Sequence[str] = ()
    # Why its worker is blocked for the workflow, after it ran out of memory.
    block: str | None = None
    # The workers whose block for running out of memory ends, because the job or the size of their GPU is at fault.
    acquitted: Sequence[str] = ()
