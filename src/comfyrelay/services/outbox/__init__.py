"""Steps that cross from one database to the other: delivered at once, recovered after a crash, applied once."""

from collections.abc import Callable, Sequence

from comfyrelay.domain.queue.settlement import JobState
from comfyrelay.services.context import DISK, ServiceContext
from comfyrelay.services.outbox.applying import Applying
from comfyrelay.services.outbox.delivery import OutboxDelivery
from comfyrelay.services.outbox.recovery import OutboxRecovery
from comfyrelay.store.outbox import OutboxEntry

__all__ = ["Outbox"]

# From the moment that its URL expires.
LONGEST_UPLOAD_SECONDS = 3600.0


class Outbox:
    def __init__(
        self,
        context: ServiceContext,
        *,
        on_applied: Callable[[str, Sequence[OutboxEntry]], None],
        on_ended: Callable[[Sequence[JobState]], None],
    ) -> None:
        self.applying = Applying(
            context.databases,
            output_disk=DISK,
            late_upload_seconds=context.settings.lease_url_ttl_seconds + LONGEST_UPLOAD_SECONDS,
            on_applied=on_applied,
            on_ended=on_ended,
        )
        self.delivery = OutboxDelivery(self.applying)
        self.recovery = OutboxRecovery(context.databases, self.applying, context.notify_channel)
