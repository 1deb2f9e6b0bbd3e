"""Deliver webhooks from a durable outbox in each shard, with retries.

The transaction that ends a job also writes its delivery. A process claims a delivery for longer than sending can take.
If the process dies, another process sends it again with the same id.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from comfyrelay.domain.deliveries import DeliveryStatus
from comfyrelay.domain.ids import new_id
from comfyrelay.domain.records.webhooks import DeliveryRecord
from comfyrelay.domain.webhooks import RETRY_DELAYS_SECONDS, EndedJob, new_secret, sign_headers, test_body
from comfyrelay.errors import Conflict, DatabaseUnavailable, NotFound
from comfyrelay.group_commit import GroupCommit
from comfyrelay.services.databases import Databases
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.services.webhooks.sender import SendResult, WebhookSender
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant import deliveries
from comfyrelay.store.tenant.deliveries import ClaimedDelivery, DeliveryOutcome
from comfyrelay.wakeup import Wakeup

log = structlog.get_logger(__name__)

CLAIM_SIZE = 50
# Concurrent requests per shard. If all are taken by slow receivers, other receivers wait.
MAX_CONCURRENT = 500
# No more deliveries of a tenant with this many requests in flight are claimed, so that its slow receivers do not delay
# other tenants.
MAX_CONCURRENT_PER_TENANT = 50
# Longer than sending and recording can take together.
LEASE_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Delivery:
    claimed: ClaimedDelivery
    job: EndedJob
    secret: str


class DeliveryService:
    def __init__(self, databases: Databases, sender: WebhookSender, *, on_recorded: Callable[[], None]) -> None:
        """`on_recorded` is called after outcomes were written."""
        self._databases = databases
        self._sender = sender
        # Notified when deliveries may be due.
        self.wakeup = Wakeup()
        # Deliveries of a shard are sent independently, and their outcomes are written in groups. Each task belongs to a
        # tenant.
        self._sending: dict[str, dict[asyncio.Task[None], str]] = defaultdict(dict)
        self._recorders: dict[str, GroupCommit[DeliveryOutcome, None]] = {
            shard: GroupCommit(partial(self._record, shard)) for shard in databases.shards
        }
        # Attempts in this process by outcome, for metrics.
        self.attempts: Counter[str] = Counter()
        self._on_recorded = on_recorded

    async def start_due(self) -> int:
        """Start all due deliveries without waiting for responses, and return their number."""
        return sum(await asyncio.gather(*(self._start_due(shard) for shard in self._databases.shards)))

    async def run_once(self) -> int:
        """Send all due deliveries, all shards in parallel, and return their number."""
        sent = 0
        while started := await self.start_due():
            sent += started
            await asyncio.gather(*self._tasks())
        return sent

    async def send_again(self, delivery_id: str, *, tenant_id: str | None = None) -> DeliveryRecord:
        """Send a delivery again now, regardless of its status. With `tenant_id`, it must belong to this tenant."""
        shards = list(self._databases.shards) if tenant_id is None else [await self._databases.shard_name_of(tenant_id)]
        for shard in shards:
            database = self._databases.shard(shard)
            found = await database.run(
                TransactionStep.TENANT, lambda tx: deliveries.resend(tx, delivery_id, tenant_id=tenant_id)
            )
            if found is not None:
                self._on_recorded()
                self.wakeup.notify()
                return found
        raise NotFound("There is no such delivery." if tenant_id is None else "You have no such delivery.")

    async def send_test(self, tenant_id: str) -> SendResult:
        """Send a test message to the tenant's webhook, once, without recording it."""
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            webhook, at = await deliveries.webhook(tx, tenant_id), await tx.now()
        if webhook is None or webhook.url is None:
            raise Conflict("There is no webhook to test: save its URL first.")
        body = test_body(at)
        return await self._sender.send(
            webhook.url, body, sign_headers(body, id_=new_id(), at=at, secret=webhook.secret)
        )

    async def close(self) -> None:
        """Record finished deliveries, and cancel those in progress, which are retried when their claims expire."""
        for task in (tasks := self._tasks()):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for recorder in self._recorders.values():
            await recorder.idle()
        await self._sender.close()

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [task for tasks in self._sending.values() for task in tasks]

    async def _start_due(self, shard: str) -> int:
        sending, started = self._sending[shard], 0
        try:
            while (free := MAX_CONCURRENT - len(sending)) > 0:
                due = await self._claim(shard, limit=min(free, CLAIM_SIZE), busy=self._busy_tenants(shard))
                for delivery in due:
                    task = asyncio.create_task(self._deliver(shard, delivery))
                    sending[task] = delivery.claimed.tenant_id
                    task.add_done_callback(lambda task: self._finish_task(shard, task))
                started += len(due)
                if not due:
                    break
        except DatabaseUnavailable:
            log.info("webhook.shard_down", shard=shard)
        return started

    def _finish_task(self, shard: str, task: asyncio.Task[None]) -> None:
        if len(self._sending[shard]) >= MAX_CONCURRENT or self._sending[shard][task] in self._busy_tenants(shard):
            self.wakeup.notify()
        del self._sending[shard][task]
        if not task.cancelled() and (error := task.exception()) is not None:
            # The outcome was not recorded, so the webhook is sent again when its claim expires.
            log.warning("webhook.recording_failed", shard=shard, error=repr(error))

    def _busy_tenants(self, shard: str) -> set[str]:
        counts = Counter(self._sending[shard].values())
        return {tenant_id for tenant_id, count in counts.items() if count >= MAX_CONCURRENT_PER_TENANT}

    async def _claim(self, shard: str, *, limit: int, busy: Collection[str]) -> list[_Delivery]:
        async def work(tx: Tx) -> list[_Delivery]:
            claimed = await deliveries.claim(tx, limit=limit, lease_seconds=LEASE_SECONDS, but_tenants=busy)
            if not claimed:
                return []
            jobs = await deliveries.ended_jobs(tx, [claim.job_id for claim in claimed])
            tenants = {claim.tenant_id for claim in claimed}
            secrets = await deliveries.secrets_of(tx, tenants)
            for tenant_id in sorted(tenants - secrets.keys()):
                secrets[tenant_id] = (await deliveries.ensure_secret(tx, tenant_id, new_secret())).secret
            return [
                _Delivery(claimed=claim, job=jobs[claim.job_id], secret=secrets[claim.tenant_id]) for claim in claimed
            ]

        with self._databases.watched(shard):
            return await self._databases.shard(shard).run(TransactionStep.WEBHOOK_CLAIM, work)

    async def _deliver(self, shard: str, delivery: _Delivery) -> None:
        claimed, body = delivery.claimed, delivery.job.body()
        headers = sign_headers(body, id_=claimed.id, at=claimed.at, secret=delivery.secret)
        outcome = decide_outcome(claimed, await self._sender.send(claimed.url, body, headers))
        await self._recorders[shard].call(outcome)
        self.attempts[outcome.status] += 1
        log.info(
            "webhook.sent",
            delivery_id=claimed.id,
            tenant_id=claimed.tenant_id,
            job_id=claimed.job_id,
            status=outcome.status,
            attempt=claimed.attempts,
            error=outcome.last_error,
        )

    async def _record(self, shard: str, outcomes: Sequence[DeliveryOutcome]) -> Sequence[None]:
        await self._databases.shard(shard).run(
            TransactionStep.WEBHOOK_NOTE, lambda tx: deliveries.record_outcomes(tx, outcomes)
        )
        self._on_recorded()
        return [None] * len(outcomes)


def decide_outcome(claimed: ClaimedDelivery, sent: SendResult) -> DeliveryOutcome:
    """Decide whether the delivery succeeded, is pending with an increasing delay, or is abandoned."""
    waits = len(RETRY_DELAYS_SECONDS)
    if sent.is_ok:
        status = DeliveryStatus.DELIVERED
    else:
        status = DeliveryStatus.PENDING if claimed.attempts <= waits else DeliveryStatus.GIVEN_UP
    return DeliveryOutcome(
        id=claimed.id,
        attempts=claimed.attempts,
        status=status,
        wait_seconds=RETRY_DELAYS_SECONDS[min(claimed.attempts, waits) - 1],
        last_status_code=sent.status_code,
        last_error=sent.error,
    )
