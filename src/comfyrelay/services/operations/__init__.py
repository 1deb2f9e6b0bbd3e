"""What keeps the service in order, and shows how it is."""

from dataclasses import dataclass
from typing import Self

from comfyrelay.services.ground import DISK, Ground
from comfyrelay.services.jobs import Jobs
from comfyrelay.services.operations.inspection import Inspection
from comfyrelay.services.operations.measures import Measures
from comfyrelay.services.operations.readiness import Readiness
from comfyrelay.services.operations.reconcile import Reconciler
from comfyrelay.services.operations.retention import Retention
from comfyrelay.services.outbox import Outbox
from comfyrelay.services.queue import Queue

__all__ = ["Operations"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Operations:
    reconciler: Reconciler
    retention: Retention
    inspection: Inspection
    measures: Measures
    readiness: Readiness

    @classmethod
    def over(cls, ground: Ground, outbox: Outbox, queue: Queue, jobs: Jobs) -> Self:
        settings, databases, objects = ground.settings, ground.databases, ground.objects
        return cls(
            reconciler=Reconciler(databases, queue.decisions, outbox.applying, outbox.recovery),
            retention=Retention(
                databases,
                objects,
                jobs.removal,
                disk=DISK,
                retention_days=settings.retention_days,
                unused_upload_hours=settings.unused_upload_hours,
            ),
            inspection=Inspection(databases, queue.control, jobs.submit, queue.waiting),
            measures=Measures(databases),
            readiness=Readiness(databases, objects),
        )
