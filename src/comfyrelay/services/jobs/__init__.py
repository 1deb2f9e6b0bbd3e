"""What users submit and see: jobs, batches, files, events."""

from collections.abc import Mapping

from comfyrelay.domain.states import WorkflowKind
from comfyrelay.services.catalogue import Catalogue
from comfyrelay.services.ground import DISK, Ground
from comfyrelay.services.jobs.accept import Acceptance, StageOf
from comfyrelay.services.jobs.batches import Batches
from comfyrelay.services.jobs.bulk import Bulk
from comfyrelay.services.jobs.ended import Ends
from comfyrelay.services.jobs.events import Events
from comfyrelay.services.jobs.removal import OnRemoved, Removals
from comfyrelay.services.jobs.rerun import Vary
from comfyrelay.services.jobs.resolve import Check, JobDefaults, Resolver
from comfyrelay.services.jobs.submit import Submit
from comfyrelay.services.jobs.uploads import Uploads
from comfyrelay.services.jobs.views import Views
from comfyrelay.services.outbox import Outbox
from comfyrelay.services.queue import Queue

__all__ = ["Jobs"]


class Jobs:
    def __init__(
        self,
        ground: Ground,
        outbox: Outbox,
        catalogue: Catalogue,
        queue: Queue,
        *,
        events: Events,
        checks: Mapping[WorkflowKind, Check],
        sends_notifications: bool = False,
        stage_of: StageOf | None = None,
        on_removed: OnRemoved | None = None,
        vary: Vary = lambda _values: None,
    ) -> None:
        settings, databases, objects = ground.settings, ground.databases, ground.objects
        ttl_seconds = settings.presigned_ttl_seconds
        defaults = JobDefaults(
            stage=settings.stage,
            max_attempts=settings.max_attempts,
            priority_min=settings.user_priority_min,
            priority_max=settings.user_priority_max,
            catalogue_disk=DISK,
        )
        self.resolve = Resolver(
            databases,
            catalogue.graphs,
            defaults=defaults,
            checks=checks,
            policy=ground.graph_policy,
            fitting=catalogue.fitting,
        )
        self.accept = Acceptance(outbox.recovery, max_active_jobs=settings.max_active_jobs_per_user, stage_of=stage_of)
        self.submit = Submit(databases, self.resolve, self.accept, vary=vary)
        self.removal = Removals(databases, objects, on_removed=on_removed)
        self.uploads = Uploads(
            databases,
            objects,
            catalogue.library,
            disk=DISK,
            max_bytes=settings.max_upload_bytes,
            ttl_seconds=ttl_seconds,
        )
        self.batches = Batches(
            databases,
            self.resolve,
            self.accept,
            queue.control,
            max_nodes=settings.max_batch_nodes,
            sends_notifications=sends_notifications,
            vary=vary,
        )
        self.bulk = Bulk(databases, queue.control, self.submit, self.batches, self.removal)
        self.views = Views(databases, objects, queue.waiting, ttl_seconds=ttl_seconds)
        self.events = events
        self.ends = Ends(databases)
