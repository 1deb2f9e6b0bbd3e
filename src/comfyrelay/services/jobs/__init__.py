"""What users submit and see: jobs, batches, files, events."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from comfyrelay.domain.states import WorkflowKind
from comfyrelay.services.catalogue import Catalogue
from comfyrelay.services.ground import DISK, Ground
from comfyrelay.services.jobs.accept import Acceptance
from comfyrelay.services.jobs.batches import Batches
from comfyrelay.services.jobs.bulk import Bulk
from comfyrelay.services.jobs.ends import Ends
from comfyrelay.services.jobs.events import Events
from comfyrelay.services.jobs.removal import Removals
from comfyrelay.services.jobs.resolve import Check, JobDefaults, Resolver
from comfyrelay.services.jobs.submit import Submit
from comfyrelay.services.jobs.uploads import Uploads
from comfyrelay.services.jobs.views import Views
from comfyrelay.services.outbox import Outbox
from comfyrelay.services.queue import Queue

__all__ = ["Jobs"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Jobs:
    uploads: Uploads
    resolve: Resolver
    accept: Acceptance
    submit: Submit
    batches: Batches
    bulk: Bulk
    views: Views
    events: Events
    ends: Ends
    removal: Removals

    @classmethod
    def over(
        cls,
        ground: Ground,
        outbox: Outbox,
        catalogue: Catalogue,
        queue: Queue,
        *,
        events: Events,
        checks: Mapping[WorkflowKind, Check],
    ) -> Self:
        settings, databases, objects = ground.settings, ground.databases, ground.objects
        ttl_seconds = settings.presigned_ttl_seconds
        defaults = JobDefaults(
            stage=settings.stage,
            max_attempts=settings.max_attempts,
            priority_min=settings.user_priority_min,
            priority_max=settings.user_priority_max,
            catalogue_disk=DISK,
        )
        resolve = Resolver(databases, catalogue.graphs, defaults=defaults, checks=checks)
        accept = Acceptance(outbox.recovery, max_active_jobs=settings.max_active_jobs_per_user)
        submit = Submit(databases, resolve, accept)
        removal = Removals(databases, objects)
        return cls(
            uploads=Uploads(
                databases,
                objects,
                catalogue.library,
                disk=DISK,
                max_bytes=settings.max_upload_bytes,
                ttl_seconds=ttl_seconds,
            ),
            resolve=resolve,
            accept=accept,
            submit=submit,
            batches=Batches(databases, resolve, accept),
            bulk=Bulk(databases, queue.control, submit, removal),
            views=Views(databases, objects, queue.waiting, ttl_seconds=ttl_seconds),
            events=events,
            ends=Ends(databases),
            removal=removal,
        )
