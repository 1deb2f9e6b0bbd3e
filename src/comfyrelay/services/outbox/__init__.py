"""The outbox between the central database and the shards: deliver, recover after a crash, apply once."""

from collections.abc import Callable, Sequence

from comfyrelay.domain.queue.settlement import JobState
from comfyrelay.services.context import ServiceContext
from comfyrelay.services.outbox.applier import UpdateApplier
from comfyrelay.services.outbox.delivery import OutboxDelivery
from comfyrelay.services.outbox.recovery import OutboxRecovery
from comfyrelay.store.outbox import OutboxEntry

__all__ = ["Outbox"]


class Outbox:
    def __init__(
        self,
        context: ServiceContext,
        *,
        on_applied: Callable[[str, Sequence[OutboxEntry]], None],
        on_ended: Callable[[Sequence[JobState]], None],
    ) -> None:
        self.applier = UpdateApplier(context, on_applied=on_applied, on_ended=on_ended)
        self.delivery = OutboxDelivery(self.applier)
        self.recovery = OutboxRecovery(context.databases, self.applier, context.notify_channel)
