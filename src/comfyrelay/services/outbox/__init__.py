"""Steps that cross from one database to the other: delivered at once, recovered after a crash, applied once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from comfyrelay.domain.settlement import JobState
from comfyrelay.services.ground import DISK, Ground
from comfyrelay.services.outbox.applying import Applying
from comfyrelay.services.outbox.delivery import OutboxDelivery
from comfyrelay.services.outbox.recovery import OutboxRecovery
from comfyrelay.store.outbox import OutboxEntry

__all__ = ["Outbox"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outbox:
    applying: Applying
    delivery: OutboxDelivery
    recovery: OutboxRecovery

    @classmethod
    def over(
        cls,
        ground: Ground,
        *,
        on_applied: Callable[[str, Sequence[OutboxEntry]], None],
        on_ended: Callable[[Sequence[JobState]], None],
    ) -> Self:
        applying = Applying(ground.databases, output_disk=DISK, on_applied=on_applied, on_ended=on_ended)
        return cls(
            applying=applying,
            delivery=OutboxDelivery(applying),
            recovery=OutboxRecovery(ground.databases, applying, ground.wakeup),
        )
