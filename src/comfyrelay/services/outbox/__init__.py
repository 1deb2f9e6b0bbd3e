"""The outbox between the central database and the shards: deliver, recover after a crash, apply once."""

from collections.abc import Callable, Sequence

from comfyrelay.domain.queue.settlement import JobState
from comfyrelay.services.context import DISK, ServiceContext
from comfyrelay.services.outbox.applier import UpdateApplier
from comfyrelay.services.outbox.delivery import OutboxDelivery
from comfyrelay.services.outbox.recovery import OutboxRecovery
from comfyrelay.store.outbox import OutboxEntry

__all__ = ["Outbox"]

# Longest duration of an upload that started just before its URL expired.
LONGEST_UPLOAD_SECONDS = 3600.0


class Outbox:
    def __init__(
        self,
        context: ServiceContext,
        *,
        on_applied: Callable[[str, Sequence[OutboxEntry]], None],
        on_ended: Callable[[Sequence[JobState]], None],
    ) -> None:
        self.applier = UpdateApplier(
            context.databases,
            output_disk=DISK,
            late_upload_seconds=context.settings.lease_url_ttl_seconds + LONGEST_UPLOAD_SECONDS,
            on_applied=on_applied,
            on_ended=on_ended,
        )
        self.delivery = OutboxDelivery(self.applier)
        self.recovery = OutboxRecovery(context.databases, self.applier, context.notify_channel)
