"""Steps that cross from one database to the other: delivered at once, recovered after a crash, applied once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from comfyrelay.domain.settlement import JobState
from comfyrelay.services.ground import DISK, Ground
from comfyrelay.services.outbox.delivery import OutboxDelivery
from comfyrelay.services.outbox.recovery import OutboxRecovery
from comfyrelay.store.outbox import OutboxEntry

__all__ = ["Outbox"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outbox:
    delivery: OutboxDelivery
    recovery: OutboxRecovery

    @classmethod
    def over(
        cls,
        ground: Ground,
        *,
        told: Callable[[str, Sequence[OutboxEntry]], None],
        ended: Callable[[Sequence[JobState]], None],
    ) -> Self:
        delivery = OutboxDelivery(ground.databases, output_disk=DISK, told=told, ended=ended)
        return cls(delivery=delivery, recovery=OutboxRecovery(ground.databases, delivery, ground.wakeup))
