"""The engine: every service over one set of databases, and the loops that keep the queue honest."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Self

import structlog

from comfyrelay.domain.failover import FailoverPolicy
from comfyrelay.domain.routing import WarmPolicy
from comfyrelay.domain.settlement import JobState
from comfyrelay.domain.states import Stage
from comfyrelay.services.accounts.accounts import Accounts
from comfyrelay.services.accounts.ledger import Ledger
from comfyrelay.services.accounts.payments import Payments
from comfyrelay.services.accounts.tenancy import Tenancy
from comfyrelay.services.catalogue.catalogue import Catalogue
from comfyrelay.services.catalogue.effect_assets import EffectAssets
from comfyrelay.services.catalogue.graphs import Graphs
from comfyrelay.services.catalogue.library import Library
from comfyrelay.services.catalogue.own_workflows import OwnWorkflows
from comfyrelay.services.catalogue.presets import Presets
from comfyrelay.services.catalogue.workflows import Workflows
from comfyrelay.services.databases import Databases
from comfyrelay.services.fleet.instances import Instances
from comfyrelay.services.fleet.views import FleetViews
from comfyrelay.services.fleet.workers import Workers
from comfyrelay.services.jobs.batches import Batches
from comfyrelay.services.jobs.bulk import Bulk
from comfyrelay.services.jobs.ends import Ends
from comfyrelay.services.jobs.events import Events
from comfyrelay.services.jobs.removal import Removing
from comfyrelay.services.jobs.submit import Policy, Submit
from comfyrelay.services.jobs.uploads import Uploads
from comfyrelay.services.jobs.views import Views
from comfyrelay.services.operations.inspection import Inspection
from comfyrelay.services.operations.measures import Measures
from comfyrelay.services.operations.readiness import Readiness
from comfyrelay.services.operations.reconcile import Reconciler
from comfyrelay.services.operations.retention import Retention
from comfyrelay.services.outbox.delivery import Courier
from comfyrelay.services.outbox.recovery import Relay
from comfyrelay.services.queue.control import Control
from comfyrelay.services.queue.handover import Handover
from comfyrelay.services.queue.heartbeats import Heartbeats
from comfyrelay.services.queue.leasing import Leasing
from comfyrelay.services.queue.outputs import Outputs
from comfyrelay.services.queue.polls import Claimer
from comfyrelay.services.queue.reaper import Reaper
from comfyrelay.services.queue.settle import Settle
from comfyrelay.services.queue.stops import Stops
from comfyrelay.services.queue.waiting import WhyWaiting
from comfyrelay.services.webhooks.deliveries import Deliveries
from comfyrelay.services.webhooks.endpoints import Webhooks
from comfyrelay.services.webhooks.sender import WebhookSender
from comfyrelay.settings import Settings
from comfyrelay.storage.objects import open_objects
from comfyrelay.store.database import system_clock
from comfyrelay.store.wakeup import LocalWakeup, PostgresWakeup, Wakeup

log = structlog.get_logger(__name__)

SEEN_SECONDS = 10.0
REMOVAL_SECONDS = 60.0
RETENTION_SECONDS = 3600.0
# Webhooks are sent when a job has ended here; ends that others applied, and retries, are looked for this often.
WEBHOOK_SECONDS = 5.0
# Files in object storage; the name under which rows refer to it.
DISK = "objects"


class Engine:
    def __init__(
        self,
        settings: Settings,
        *,
        clock: Callable[[], datetime] = system_clock,
        wakeup: Wakeup | None = None,
        signing_secrets: Sequence[str] = (),
    ) -> None:
        """`signing_secrets` sign the URLs of local files; without them there are none."""
        self.settings = settings
        self.databases = Databases.from_settings(settings, clock=clock)
        self.wakeup = wakeup or self._wakeup()
        failover = FailoverPolicy(
            max_failures_before_block=settings.max_failures_before_block,
            cooldown=timedelta(seconds=settings.block_cooldown_seconds),
        )
        ttl = timedelta(seconds=settings.lease_ttl_seconds)
        self.objects = open_objects(settings.objects_url, base_url=settings.base_url, secrets=signing_secrets)
        graphs = Graphs(self.objects)
        self.events = Events(self.databases)
        self.courier = Courier(self.databases, output_disk=DISK, told=self.events.told, ended=self._ended)
        self.relay = Relay(self.databases, self.courier, self.wakeup)
        self.tenancy = Tenancy(self.databases)
        self.accounts = Accounts(self.databases, self.tenancy)
        self.instances = Instances(is_on=settings.validate_asg_instance)
        self.effect_assets = EffectAssets(
            self.objects, max_bytes=settings.max_upload_bytes, ttl_seconds=settings.presigned_ttl_seconds
        )
        self.catalogue = Catalogue(
            self.databases,
            graphs,
            self.effect_assets,
            default_fleet=(Stage(settings.stage), settings.default_fleet) if settings.default_fleet else None,
        )
        self.workflows = Workflows(self.databases, graphs, self.catalogue, self.effect_assets)
        self.fleets = FleetViews(self.databases, worker_stale_seconds=settings.worker_stale_seconds)
        self.ledger = Ledger(self.databases)
        self.submit = Submit(self.databases, self.relay, graphs, policy=_policy(settings))
        self.batches = Batches(self.databases, self.submit)
        self.leasing = Leasing(
            self.databases,
            self.courier,
            graphs,
            ttl=ttl,
            failover=failover,
            warm=WarmPolicy(
                lookahead_rows=settings.warm_lookahead_rows,
                longest_wait=timedelta(seconds=settings.warm_wait_seconds),
            ),
            deferral=timedelta(seconds=settings.retry_backoff_seconds),
        )
        self.heartbeats = Heartbeats(self.databases, ttl=ttl)
        self.stops = Stops(self.databases)
        self.handover = Handover(self.databases, self.objects, ttl_seconds=settings.presigned_ttl_seconds)
        self.outputs = Outputs(self.databases, self.handover, self.objects, validation=settings.output_validation)
        self.settle = Settle(self.databases, self.courier, self.wakeup, policy=failover)
        self.claimer = Claimer(self.leasing, self.settle, self.wakeup, on_recall=self.stops.hint)
        self.workers = Workers(
            self.databases,
            self.courier,
            self.wakeup,
            policy=failover,
            max_fleet_workers=settings.max_fleet_workers,
            stale_seconds=settings.worker_stale_seconds,
        )
        self.control = Control(self.databases, self.courier, self.relay, self.wakeup, policy=failover)
        self.reaper = Reaper(self.databases, self.courier, self.wakeup, policy=failover)
        self.waiting = WhyWaiting(self.databases, worker_stale_seconds=settings.worker_stale_seconds)
        self.inspection = Inspection(self.databases, self.control, self.submit, self.waiting)
        self.reconciler = Reconciler(self.databases, self.courier, self.relay, policy=failover)
        self._add_users_side()
        self._add_operators_side()
        # who else hears which jobs have just ended; they must not take time, nor raise
        self.on_ended: list[Callable[[Sequence[JobState]], None]] = []
        self._loops: list[asyncio.Task[None]] = []

    def _add_users_side(self) -> None:
        """What users ask for beside jobs, and jobs as users see them."""
        url_seconds = self.settings.presigned_ttl_seconds
        self.library = Library(self.databases)
        self.own_workflows = OwnWorkflows(self.databases, self.catalogue)
        self.presets = Presets(self.databases)
        self.ends = Ends(self.databases)
        self.uploads = Uploads(
            self.databases,
            self.objects,
            self.library,
            disk=DISK,
            max_bytes=self.settings.max_upload_bytes,
            ttl_seconds=url_seconds,
        )
        self.views = Views(self.databases, self.objects, self.waiting, ttl_seconds=url_seconds)
        self.removing = Removing(self.databases, self.objects)
        self.bulk = Bulk(self.databases, self.control, self.submit, self.removing)
        self.payments = Payments(self.databases, self.ledger, secret=self.settings.payment_webhook_secret)
        self.webhooks = Webhooks(self.databases)
        sender = WebhookSender(allow_private=self.settings.webhook_allow_private)
        self.deliveries = Deliveries(self.databases, sender)

    def _add_operators_side(self) -> None:
        """What keeps the service in order, and tells how it is."""
        self.retention = Retention(
            self.databases,
            self.objects,
            self.removing,
            disk=DISK,
            retention_days=self.settings.retention_days,
            unused_upload_hours=self.settings.unused_upload_hours,
        )
        self.measures = Measures(self.databases)
        self.readiness = Readiness(self.databases, self.objects)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Check the schemas, then keep reaping and relaying until stopped."""
        await self.databases.require_current()
        await self.wakeup.start()
        reaping = _every("reaper", self.settings.reaper_interval_seconds, self.reaper.run_once)
        relaying = _every("relay", self.settings.relay_interval_seconds, self.relay.run_once)
        noting = _every("seen", SEEN_SECONDS, self._note_seen)
        removing = _every("removal", REMOVAL_SECONDS, self.removing.run_once)
        retaining = _every("retention", RETENTION_SECONDS, self.retention.run_once)
        # ends that come close together are sent together
        telling = _every("webhooks", 0.2, self._tell_of_ends)
        loops = (reaping, relaying, noting, removing, retaining, telling)
        self._loops = [asyncio.create_task(each) for each in loops]

    async def stop(self) -> None:
        await self.claimer.stop()
        self.stops.close()
        self.events.close()
        for loop in self._loops:
            loop.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await loop
        self._loops.clear()
        await self.deliveries.close()
        await self.courier.idle()
        await self.wakeup.stop()
        await self.databases.close()

    async def _note_seen(self) -> None:
        """For all workers at once: a poll of its own must not cost a write."""
        await self.workers.seen(self.leasing.heard_of())

    def _ended(self, ended: Sequence[JobState]) -> None:
        self.measures.count_ended([each.status for each in ended])
        self.deliveries.hint()
        for each in self.on_ended:
            each(ended)

    async def _tell_of_ends(self) -> None:
        await self.deliveries.start_due()
        await self.deliveries.wait(WEBHOOK_SECONDS)

    def _wakeup(self) -> Wakeup:
        central = self.databases.central
        if central.dialect == "postgresql":
            return PostgresWakeup(central.dsn)
        return LocalWakeup()


async def _every(name: str, seconds: float, work: Callable[[], Awaitable[object]]) -> None:
    while True:
        try:
            await work()
        except Exception:
            # A loop that ends on its first error would leave leases unreaped for ever.
            log.exception("loop.failed", loop=name)
        await asyncio.sleep(seconds)


def _policy(settings: Settings) -> Policy:
    return Policy(
        stage=settings.stage,
        max_attempts=settings.max_attempts,
        max_active_jobs=settings.max_active_jobs_per_user,
        priority_min=settings.user_priority_min,
        priority_max=settings.user_priority_max,
        catalogue_disk=DISK,
    )
