"""What keeps the service in order, and shows how it is."""

from comfyrelay.services.catalogue import Catalogue
from comfyrelay.services.ground import DISK, Ground
from comfyrelay.services.jobs import Jobs
from comfyrelay.services.operations.inspection import Inspection
from comfyrelay.services.operations.measures import Measures
from comfyrelay.services.operations.mending import Mending
from comfyrelay.services.operations.readiness import Readiness
from comfyrelay.services.operations.reconcile import Reconciler
from comfyrelay.services.operations.retention import Retention
from comfyrelay.services.outbox import Outbox
from comfyrelay.services.queue import Queue

__all__ = ["Operations"]


class Operations:
    def __init__(self, ground: Ground, outbox: Outbox, catalogue: Catalogue, queue: Queue, jobs: Jobs) -> None:
        settings, databases, objects = ground.settings, ground.databases, ground.objects
        self.reconciler = Reconciler(databases, queue.decisions, outbox.applying, outbox.recovery)
        self.mending = Mending(databases, self.reconciler)
        self.retention = Retention(
            databases,
            objects,
            jobs.removal,
            catalogue.definitions,
            disk=DISK,
            retention_days=settings.retention_days,
            unused_upload_hours=settings.unused_upload_hours,
        )
        self.inspection = Inspection(databases, queue.control, jobs.submit, queue.waiting)
        self.measures = Measures(databases)
        self.readiness = Readiness(databases, objects)
