"""Services for users: submit, list, control and remove jobs, batches and files."""

from collections.abc import Awaitable, Callable, Mapping

from comfyrelay.domain.queue.states import WorkflowKind
from comfyrelay.services.catalogue import Catalogue
from comfyrelay.services.context import DISK, ServiceContext
from comfyrelay.services.jobs.batches import Batches
from comfyrelay.services.jobs.bulk import BulkActions
from comfyrelay.services.jobs.clearing import QueueClearing
from comfyrelay.services.jobs.ended_jobs import EndedJobsReader
from comfyrelay.services.jobs.removal import OnRemoved, Removals
from comfyrelay.services.jobs.saved_views import SavedViewService
from comfyrelay.services.jobs.submission.accept import Acceptance, StageOf
from comfyrelay.services.jobs.submission.rerun import Vary
from comfyrelay.services.jobs.submission.resolve import Check, JobDefaults, Resolver
from comfyrelay.services.jobs.submission.reuse import STRAY_SECONDS, OnReused, Reuse
from comfyrelay.services.jobs.submission.submit import JobSubmission
from comfyrelay.services.jobs.test_runs import TestRuns
from comfyrelay.services.jobs.uploads import Uploads
from comfyrelay.services.jobs.views.estimate import Estimates
from comfyrelay.services.jobs.views.events import JobEvents
from comfyrelay.services.jobs.views.jobs import JobViews
from comfyrelay.services.jobs.views.live import LiveUpdates
from comfyrelay.services.jobs.views.media import MediaViews
from comfyrelay.services.jobs.views.overview import QueueOverview
from comfyrelay.services.jobs.views.posters import PendingPosters
from comfyrelay.services.jobs.views.recent import RecentOutputs
from comfyrelay.services.jobs.views.units import QueueUnits
from comfyrelay.services.outbox import Outbox
from comfyrelay.services.queue import Queue
from comfyrelay.settings import Settings

__all__ = ["Jobs"]


class Jobs:
    def __init__(
        self,
        context: ServiceContext,
        outbox: Outbox,
        catalogue: Catalogue,
        queue: Queue,
        *,
        events: JobEvents,
        limit_of: Callable[[str], Awaitable[int | None]],
        checks: Mapping[WorkflowKind, Check],
        sends_notifications: bool = False,
        stage_of: StageOf | None = None,
        on_removed: OnRemoved | None = None,
        on_reused: OnReused | None = None,
        vary: Vary = lambda _values: None,
    ) -> None:
        settings, databases, objects = context.settings, context.databases, context.objects
        defaults = _job_defaults(settings)
        reuse = Reuse(
            objects, stray_seconds=STRAY_SECONDS, stage_of=stage_of, on_reused=on_reused, on_removed=on_removed
        )
        self.resolve = Resolver(
            databases,
            catalogue.graphs,
            defaults=defaults,
            checks=checks,
            policy=context.graph_policy,
            availability=catalogue.availability,
            reuse=reuse,
        )
        self.pending_posters = PendingPosters(databases, objects, queue.posters, disk=DISK)
        self.accept = Acceptance(
            outbox.recovery,
            outbox.applier,
            outbox.delivery,
            max_active_jobs=settings.max_active_jobs_per_user,
            limit_of=limit_of,
            stage_of=stage_of,
            on_files_used=self.pending_posters.wakeup,
        )
        allow_private = settings.webhook_allow_private
        self.submit = JobSubmission(databases, self.resolve, self.accept, reuse, vary=vary, allow_private=allow_private)
        self.test_runs = TestRuns(databases, self.submit)
        self.removal = Removals(databases, objects, on_removed=on_removed)
        self.uploads = Uploads(
            databases,
            objects,
            catalogue.library,
            disk=DISK,
            max_bytes=settings.max_upload_bytes,
            ttl_seconds=settings.presigned_ttl_seconds,
        )
        self.batches = Batches(
            databases,
            self.resolve,
            self.accept,
            reuse,
            queue.control,
            max_nodes=settings.max_batch_nodes,
            sends_notifications=sends_notifications,
            vary=vary,
            allow_private=allow_private,
        )
        self.bulk = BulkActions(databases, queue.control, self.submit, self.batches, self.removal, defaults=defaults)
        self._add_views(context, queue, events, stage_of)

    def _add_views(self, context: ServiceContext, queue: Queue, events: JobEvents, stage_of: StageOf | None) -> None:
        settings, databases, objects = context.settings, context.databases, context.objects
        ttl_seconds = settings.presigned_ttl_seconds
        self.media = MediaViews(databases, objects, ttl_seconds=ttl_seconds)
        self.views = JobViews(databases, objects, queue.wait_reasons, self.media, ttl_seconds=ttl_seconds)
        self.recent = RecentOutputs(databases, self.media)
        self.overview = QueueOverview(databases, objects, ttl_seconds=ttl_seconds)
        self.estimates = Estimates(
            databases,
            self.resolve,
            self.recent,
            self.overview,
            worker_stale_seconds=settings.worker_stale_seconds,
            stage=settings.stage,
            stage_of=stage_of,
        )
        self.clearing = QueueClearing(databases)
        self.saved_views = SavedViewService(databases)
        self.units = QueueUnits(databases, self.batches, queue.wait_reasons, self.media)
        self.events = events
        self.live = LiveUpdates(databases, self.views, self.batches, self.overview, context.notify_channel)
        self.ended_jobs = EndedJobsReader(databases)


def _job_defaults(settings: Settings) -> JobDefaults:
    return JobDefaults(
        stage=settings.stage,
        max_attempts=settings.max_attempts,
        priority_min=settings.user_priority_min,
        priority_max=settings.user_priority_max,
        catalogue_disk=DISK,
    )
