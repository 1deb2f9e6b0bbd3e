"""How many machines there should be, and which jobs do not wait for them."""

from comfyrelay.services.ground import Ground
from comfyrelay.services.outbox import Outbox
from comfyrelay.services.queue import Queue
from comfyrelay.services.scaling.burst import Bursting

__all__ = ["Scaling"]


class Scaling:
    def __init__(self, ground: Ground, outbox: Outbox, queue: Queue) -> None:
        settings = ground.settings
        self.bursting = Bursting(
            ground.databases,
            queue.decisions,
            hint=outbox.recovery.burst_hint,
            limit_micros_per_hour=settings.burst_micros_per_hour,
            worker_stale_seconds=settings.worker_stale_seconds,
        )
