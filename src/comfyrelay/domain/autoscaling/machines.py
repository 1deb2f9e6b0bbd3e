"""Ordered machines, decisions and leadership."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any


class MachineEndReason(StrEnum):
    """Why a machine ended or never started. Details follow after a colon."""

    # no longer needed
    UNNEEDED = "unneeded"
    # refused by the provider
    REFUSED = "refused"
    # order never accepted by the provider
    UNANSWERED = "unanswered"
    # boot timeout
    BOOT_FAILED = "boot_failed"
    # disappeared before it became a worker
    GONE_BOOTING = "gone_booting"
    # disappeared: Spot interruption or external termination
    GONE = "gone"
    # its worker deregistered or went silent
    SILENT = "silent"
    # its worker was drained or revoked
    CLOSED = "closed"
    # another machine serves its order
    SURPLUS = "surplus"


FAILED_BOOTS = (MachineEndReason.BOOT_FAILED, MachineEndReason.GONE_BOOTING)


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
        """The worker id that it registers with."""
        return self.worker_id or self.provider_id or self.key

    @property
    def ended(self) -> str:
        """The reason without its details."""
        return (self.reason or "").partition(":")[0]


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
    """The holder of a single-leader role. Its writes count while its `term` is the newest."""

    name: str
    holder: str
    term: int
    expires_at: datetime
