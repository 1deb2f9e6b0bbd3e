"""Ordered machines, the machines that providers report, decisions and leadership."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any


class MachineEndReason(StrEnum):
    """Why a machine ended or never started. Details follow after a colon."""

    UNNEEDED = "unneeded"
    # The provider refused the launch.
    REFUSED = "refused"
    # The provider never accepted the order.
    UNANSWERED = "unanswered"
    # The boot timed out.
    BOOT_FAILED = "boot_failed"
    # The machine disappeared before it became a worker.
    GONE_BOOTING = "gone_booting"
    # The machine disappeared: a Spot interruption or an external termination.
    GONE = "gone"
    # The worker deregistered or went silent.
    SILENT = "silent"
    # The worker was drained or revoked.
    CLOSED = "closed"
    # Another machine fulfills the order.
    SURPLUS = "surplus"


FAILED_BOOTS = (MachineEndReason.BOOT_FAILED, MachineEndReason.GONE_BOOTING)


class ProviderMachineState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    ENDING = "ending"


@dataclass(frozen=True, kw_only=True, slots=True)
class ProviderMachine:
    """An existing machine as its provider reports it. `key` is the key of its order, if the provider knows it."""

    id: str
    state: ProviderMachineState = ProviderMachineState.RUNNING
    key: str | None = None
    worker_id: str | None = None
    instance_type: str | None = None
    price_per_hour: float | None = None
    launched_at: datetime | None = None

    @property
    def is_ending(self) -> bool:
        return self.state is ProviderMachineState.ENDING

    @property
    def worker(self) -> str:
        """The id with which its worker registers."""
        return self.worker_id or self.id


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineRecord:
    key: str
    fleet_id: int
    ordered_at: datetime
    provider_id: str | None = None
    worker_id: str | None = None
    instance_type: str | None = None
    price_per_hour: float | None = None
    launched_at: datetime | None = None
    registered_at: datetime | None = None
    ending_at: datetime | None = None
    ended_at: datetime | None = None
    reason: str | None = None

    @property
    def worker(self) -> str:
        """The id with which its worker registers."""
        return self.worker_id or self.provider_id or self.key

    @property
    def end_reason(self) -> str:
        """The reason without its details."""
        return (self.reason or "").partition(":")[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class EndedMachine:
    """A machine that has ended, with the number of its completed jobs. `cost` is `None` if its price is unknown."""

    machine: MachineRecord
    jobs: int
    cost: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingDecision:
    id: int
    fleet_id: int
    created_at: datetime
    policy: str
    desired: int
    launch: Sequence[Mapping[str, Any]]
    end: Sequence[str]
    outcome: Mapping[str, Any]
    reason: str
    seen: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Leader:
    """The holder of a single-leader role. Its writes are accepted while its `term` is the newest."""

    name: str
    holder: str
    term: int
    expires_at: datetime
