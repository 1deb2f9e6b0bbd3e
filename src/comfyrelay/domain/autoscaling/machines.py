"""Machines that were ordered, decisions about them, and who decides."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any


class MachineEndReason(StrEnum):
    """Why a machine is no more, or never came to be. With more to say, the word is followed by a colon."""

    # nobody needed it any more
    UNNEEDED = "unneeded"
    # its provider would not make it
    REFUSED = "refused"
    # its provider never took the order
    UNANSWERED = "unanswered"
    # it took far too long to become a worker
    BOOT_FAILED = "boot_failed"
    # it disappeared before it became a worker
    GONE_BOOTING = "gone_booting"
    # it disappeared: a Spot instance that was taken back, somebody who ended it
    GONE = "gone"
    # its worker left, or was not heard of any more
    SILENT = "silent"
    # its worker takes no jobs any more: somebody drained or revoked it
    CLOSED = "closed"
    # its order has another machine
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
        """As whom its worker registers."""
        return self.worker_id or self.provider_id or self.key

    @property
    def ended(self) -> str:
        """The word that its reason begins with."""
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
    """Whoever holds what only one may do. What it writes counts while its `term` is the newest."""

    name: str
    holder: str
    term: int
    expires_at: datetime
