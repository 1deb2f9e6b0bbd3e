"""The engine: every service over one set of databases, and the loops that keep the queue honest."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Self

import structlog

from comfyrelay.domain.failover import FailoverPolicy
from comfyrelay.domain.routing import WarmPolicy
from comfyrelay.services.batches import Batches
from comfyrelay.services.catalogue import Catalogue
from comfyrelay.services.claimer import Claimer
from comfyrelay.services.control import Control
from comfyrelay.services.courier import Courier
from comfyrelay.services.databases import Databases
from comfyrelay.services.graphs import Graphs
from comfyrelay.services.heartbeats import Heartbeats
from comfyrelay.services.leasing import Leasing
from comfyrelay.services.ledger import Ledger
from comfyrelay.services.reaper import Reaper
from comfyrelay.services.reconcile import Reconciler
from comfyrelay.services.relay import Relay
from comfyrelay.services.settle import Settle
from comfyrelay.services.submit import Policy, Submit
from comfyrelay.services.tenancy import Tenancy
from comfyrelay.services.waiting import WhyWaiting
from comfyrelay.services.wakeup import LocalWakeup, PostgresWakeup, Wakeup
from comfyrelay.services.workers import Workers
from comfyrelay.settings import Settings
from comfyrelay.storage.objects import open_objects
from comfyrelay.store.database import system_clock

log = structlog.get_logger(__name__)

SEEN_SECONDS = 5.0
# Files in object storage; the name under which rows refer to it.
DISK = "objects"


class Engine:
    def __init__(
        self,
        settings: Settings,
        *,
        clock: Callable[[], datetime] = system_clock,
        wakeup: Wakeup | None = None,
    ) -> None:
        self.settings = settings
        self.databases = Databases.from_settings(settings, clock=clock)
        self.wakeup = wakeup or self._wakeup()
        failover = FailoverPolicy(
            max_failures_before_block=settings.max_failures_before_block,
            cooldown=timedelta(seconds=settings.block_cooldown_seconds),
        )
        ttl = timedelta(seconds=settings.lease_ttl_seconds)
        graphs = Graphs(open_objects(settings.objects_url))
        self.courier = Courier(self.databases, output_disk=DISK)
        self.relay = Relay(self.databases, self.courier, self.wakeup)
        self.tenancy = Tenancy(self.databases)
        self.catalogue = Catalogue(self.databases, graphs)
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
        self.settle = Settle(self.databases, self.courier, self.wakeup, policy=failover)
        self.claimer = Claimer(self.leasing, self.settle, self.wakeup)
        self.workers = Workers(
            self.databases,
            self.courier,
            self.wakeup,
            policy=failover,
            max_fleet_workers=settings.max_fleet_workers,
        )
        self.control = Control(self.databases, self.courier, self.relay, self.wakeup, policy=failover)
        self.reaper = Reaper(self.databases, self.courier, self.wakeup, policy=failover)
        self.waiting = WhyWaiting(self.databases, worker_stale_seconds=settings.worker_stale_seconds)
        self.reconciler = Reconciler(self.databases, self.courier, self.relay, policy=failover)
        self._loops: list[asyncio.Task[None]] = []

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
        self._loops = [asyncio.create_task(each) for each in (reaping, relaying, noting)]

    async def stop(self) -> None:
        await self.claimer.stop()
        for loop in self._loops:
            loop.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await loop
        self._loops.clear()
        await self.courier.idle()
        await self.wakeup.stop()
        await self.databases.close()

    async def _note_seen(self) -> None:
        """For all workers at once: a poll of its own must not cost a write."""
        await self.workers.seen(self.leasing.heard_of())

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
