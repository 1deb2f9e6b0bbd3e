"""The engine: all services over one set of databases, and their background loops.

Its attributes are named after the packages next to this file: `engine.queue` is in `queue/`.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Self

import structlog

from comfyrelay.clock import utc_now
from comfyrelay.domain.queue.dispatch import Dispatch
from comfyrelay.domain.queue.settlement import JobState
from comfyrelay.errors import DatabaseUnavailable
from comfyrelay.services.accounts import Accounts
from comfyrelay.services.auditing import AuditLog
from comfyrelay.services.autoscaling import Autoscaling
from comfyrelay.services.catalogue import Catalogue
from comfyrelay.services.comfyui_api import ComfyuiApi
from comfyrelay.services.context import ServiceContext
from comfyrelay.services.databases import RETRY_SECONDS, Databases
from comfyrelay.services.gallery import Gallery
from comfyrelay.services.hooks import Hooks
from comfyrelay.services.jobs import Jobs
from comfyrelay.services.operations import Operations
from comfyrelay.services.operations.outages import Outage
from comfyrelay.services.outbox import Outbox
from comfyrelay.services.queue import Queue
from comfyrelay.services.webhooks import Webhooks
from comfyrelay.services.workers import WorkerServices
from comfyrelay.settings import Settings
from comfyrelay.storage.objects import LocalObjects, open_objects
from comfyrelay.store.notify import NotifyChannel, PostgresNotifyChannel
from comfyrelay.store.outbox import OutboxEntry

log = structlog.get_logger(__name__)

# Intervals of the background loops.
SEEN_SECONDS = 10.0
REPAIR_SECONDS = 60.0
REMOVAL_SECONDS = 60.0
OFFLINE_WORKER_REMOVAL_SECONDS = 900.0
USAGE_SECONDS = 60.0
DURATION_SECONDS = 15.0
# Counts are stored at this interval; load samples are taken once a minute.
SAMPLE_SECONDS = 10.0
OUTAGE_SECONDS = 15.0
RETENTION_SECONDS = 3600.0
# Webhooks are sent when a job ends in this process; others, and retries, are polled at this interval.
WEBHOOK_SECONDS = 5.0
# Posters of this process's inputs are drawn soon; posters of other processes' inputs are polled at this interval.
POSTER_SECONDS = 30.0
# Mails of this process are sent at once; those of other processes, and retries, are polled at this interval.
MAIL_SECONDS = 10.0


class Engine:
    def __init__(
        self,
        settings: Settings,
        *,
        clock: Callable[[], datetime] = utc_now,
        notify_channel: NotifyChannel | None = None,
        signing_secrets: Sequence[str] = (),
        hooks: Hooks | None = None,
    ) -> None:
        """`signing_secrets` sign the URLs of local files; without secrets, local files have no URLs."""
        self.settings = settings
        # Storage is opened first, because it refuses invalid URLs, and opening the databases creates files.
        self.objects = open_objects(settings.objects_url, base_url=settings.base_url, secrets=signing_secrets)
        self.databases = Databases.from_settings(settings, clock=clock)
        self.notify_channel = notify_channel or self._open_notify_channel()
        self._hooks = hooks or Hooks()
        context = ServiceContext(
            settings=settings,
            databases=self.databases,
            objects=self.objects,
            notify_channel=self.notify_channel,
            hooks=self._hooks,
        )
        self.audit = AuditLog(self.databases)
        self.outbox = Outbox(context, on_applied=self._on_applied, on_ended=self._on_ended)
        self.accounts = Accounts(context)
        self.catalogue = Catalogue(context, self.accounts.own_workflows)
        self.queue = Queue(
            context,
            self.outbox,
            self.catalogue.graphs,
            why_not_burst=self._why_not_burst,
            on_leased=self._on_leased,
            on_transition=partial(self._publish_change, "dispatches"),
        )
        self.workers = WorkerServices(context, self.queue, self.catalogue.graphs)
        self.autoscaling = Autoscaling(context, self.workers, self.outbox, self.queue)
        self.jobs = Jobs(context, self.outbox, self.catalogue, self.queue, self.accounts)
        self.gallery = Gallery(context, self.jobs)
        self.comfyui_api = ComfyuiApi(context, self.catalogue, self.queue, self.jobs)
        self.webhooks = Webhooks(context, on_recorded=partial(self._publish_change, "webhooks"))
        self.operations = Operations(
            context,
            self.outbox,
            self.catalogue,
            self.queue,
            workers=self.workers,
            jobs=self.jobs,
            accounts=self.accounts,
            failing_fleets=self.autoscaling.views.failing,
        )
        self._loops: list[asyncio.Task[None]] = []
        self._fleet_problems: Sequence[Outage] = ()

    def sign_with(self, secrets: Sequence[str]) -> None:
        """Set the secrets that sign the URLs of local files, if they were not known before."""
        if isinstance(self.objects, LocalObjects):
            self.objects.sign_with(secrets)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Check the schemas, then start the background loops."""
        await self.databases.require_current()
        await self.notify_channel.start()
        settings = self.settings
        loops = [
            _every("reaper", settings.reaper_interval_seconds, self.queue.reaper.run_once),
            _every("recovery", settings.recovery_interval_seconds, self.outbox.recovery.run_once),
            _every("repair", REPAIR_SECONDS, self.operations.auto_repair.run_once),
            _every("shards", RETRY_SECONDS, self.databases.open_pending),
            _every("seen", SEEN_SECONDS, self._record_seen),
            _every("offline workers", OFFLINE_WORKER_REMOVAL_SECONDS, self._remove_offline),
            _every("usage", USAGE_SECONDS, self.autoscaling.usage.run_once),
            _every("durations", DURATION_SECONDS, self.autoscaling.durations.learn),
            _every("removal", REMOVAL_SECONDS, self.jobs.removal.run_once),
            _every("erasure", REMOVAL_SECONDS, self.operations.erasure.run_once),
            _every("retention", RETENTION_SECONDS, self.operations.retention.run_once),
            _every("output expiry", RETENTION_SECONDS, self.gallery.expiry.run_once),
            _every("unused requirements", RETENTION_SECONDS, self.catalogue.availability.delete_unused),
            # The short intervals below batch work that arrives together.
            _every("waiting workflows", 0.2, self.catalogue.pending_workflows.run_and_wait),
            _every("burst", 0.2, self.autoscaling.bursting.run_stages),
            _every("webhooks", 0.2, self._send_webhooks),
            _every("mails", 0.2, self._send_mails),
            # The interval lets submitted jobs start before the posters of their inputs are drawn.
            _every("posters", 0.5, self._draw_posters),
        ]
        if not self._hooks.desk_workers:
            # A desk does not show load samples.
            loops.append(_every("samples", SAMPLE_SECONDS, self.operations.samples.run_once))
            loops.append(_every("outages", OUTAGE_SECONDS, self._find_outages))
        self._loops = [asyncio.create_task(loop) for loop in loops]

    async def stop(self) -> None:
        await self.queue.polls.stop()
        self.queue.stop_requests.close()
        self.jobs.events.close()
        self.jobs.live.close()
        self.operations.live.close()
        await self.jobs.live.wait_closed()
        await self.operations.live.wait_closed()
        await self.operations.reconcile_runs.close()
        for loop in self._loops:
            loop.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await loop
        self._loops.clear()
        await self.webhooks.deliveries.close()
        await self.accounts.mailer.close()
        await self.outbox.delivery.idle()
        await self.queue.previews.idle()
        await self.notify_channel.stop()
        await self.databases.close()

    async def _record_seen(self) -> None:
        """Record all workers that sent a request in one write, so that requests need no write of their own."""
        # Workers that reported their GPUs were recorded with them.
        recorded = await self.workers.slots.write_noted()
        seen = self.workers.workers.take_seen().union(self.queue.leasing.take_pollers())
        await self.workers.workers.record_seen(sorted(seen - recorded))

    async def _remove_offline(self) -> None:
        await self.workers.workers.remove_offline(self.settings.offline_worker_retention_hours * 3600)

    # Callbacks of services that are created before the services they call.

    def _why_not_burst(self, dispatch_id: int) -> str | None:
        return self.autoscaling.bursting.why_not_burst(dispatch_id)

    def _on_leased(self, leased: Sequence[Dispatch]) -> None:
        self.operations.samples.count_begun(leased)

    def _publish_change(self, kind: str) -> None:
        self.operations.live.publish_soon(kind)

    def _on_applied(self, shard: str, entries: Sequence[OutboxEntry]) -> None:
        self.jobs.events.wake(shard, entries)
        self.jobs.live.wake(shard)

    def _on_ended(self, ended: Sequence[JobState]) -> None:
        self.operations.metrics.count_ended([job.status for job in ended])
        self.operations.samples.count_ended(ended)
        self.webhooks.deliveries.wakeup.notify()
        self.autoscaling.wakeup.notify()
        self._hooks.on_ended(ended)

    async def _send_webhooks(self) -> None:
        await self.webhooks.deliveries.start_due()
        await self.webhooks.deliveries.wakeup.wait(WEBHOOK_SECONDS)

    async def _find_outages(self) -> None:
        await self.operations.outages.run_once()
        if self.operations.alerts.rules:
            with contextlib.suppress(DatabaseUnavailable):
                self._fleet_problems = await self.operations.fleet_problems.find()
            # While the database is unreachable, the last known problems are kept.
            await self.operations.alerts.notify([*self.operations.outages.confirmed, *self._fleet_problems])

    async def _send_mails(self) -> None:
        await self.accounts.mailer.run_once()
        await self.accounts.mailer.wakeup.wait(MAIL_SECONDS)

    async def _draw_posters(self) -> None:
        await self.jobs.pending_posters.run_once()
        await self.jobs.pending_posters.wakeup.wait(POSTER_SECONDS)

    def _open_notify_channel(self) -> NotifyChannel:
        central = self.databases.central
        if central.dialect == "postgresql":
            return PostgresNotifyChannel(central.dsn)
        return NotifyChannel()


async def _every(name: str, seconds: float, work: Callable[[], Awaitable[object]]) -> None:
    while True:
        try:
            await work()
        except Exception:
            # The loop must survive any error; otherwise expired leases would never be reaped.
            log.exception("loop.failed", loop=name)
        await asyncio.sleep(seconds)
