"""Telling others of the ends of jobs: from a durable outbox in each shard, tried until it works or is given up.

A delivery is written with the end that it tells of. Whoever sends it claims it first for longer than sending can take;
when that process dies, another sends it again with the same id.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from comfyrelay.domain.deliveries import DeliveryStatus
from comfyrelay.domain.ids import new_id
from comfyrelay.domain.records.webhooks import DeliveryRecord
from comfyrelay.domain.webhooks import WAITS_SECONDS, EndedJob, new_secret, signed, test_body
from comfyrelay.errors import Conflict, DatabaseUnavailable, NotFound
from comfyrelay.group_commit import GroupCommit
from comfyrelay.services.databases import Databases
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.services.webhooks.sender import SendResult, WebhookSender
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant import deliveries
from comfyrelay.store.tenant.deliveries import Claimed, DeliveryOutcome
from comfyrelay.wakeup import Wakeup

log = structlog.get_logger(__name__)

AT_ONCE = 50
# So many receivers of one shard may take their time before others wait for them.
MOST_UNDER_WAY = 500
# Longer than sending and noting down can take together.
LEASE_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Delivery:
    claimed: Claimed
    job: EndedJob
    secret: str


class DeliveryService:
    def __init__(self, databases: Databases, sender: WebhookSender, *, on_noted: Callable[[], None]) -> None:
        """`on_noted` is called when what came of some was written down."""
        self._databases = databases
        self._sender = sender
        self._wakeup = Wakeup()
        # By shard, what is being sent: receivers answer at their own pace, what came of them is written down together.
        self._under_way: dict[str, set[asyncio.Task[None]]] = defaultdict(set)
        self._noting = {shard: self._group_commit(shard) for shard in databases.shards}
        # Attempts of this process by what came of them, for whoever measures.
        self.attempts: Counter[str] = Counter()
        self._on_noted = on_noted

    def wakeup(self) -> None:
        """Jobs have ended: there may be something to send."""
        self._wakeup.notify()

    async def wait(self, seconds: float) -> None:
        """Until there may be something to send."""
        await self._wakeup.wait(seconds)

    async def start_due(self) -> int:
        """Begin to send what is due, in every shard, and wait for nobody's answer; returns how many were begun."""
        return sum(await asyncio.gather(*(self._start_due(shard) for shard in self._databases.shards)))

    async def run_once(self) -> int:
        """Send everything that is due, in every shard at once; returns how many were sent."""
        sent = 0
        while started := await self.start_due():
            sent += started
            await asyncio.gather(*self._tasks())
        return sent

    async def send_again(self, delivery_id: str, *, tenant_id: str | None = None) -> DeliveryRecord:
        """Once more and at once, whatever came of it before; of any tenant, or of this one alone."""
        shards = list(self._databases.shards) if tenant_id is None else [await self._databases.shard_name_of(tenant_id)]
        for shard in shards:
            database = self._databases.shard(shard)
            found = await database.run(
                TransactionStep.TENANT, lambda tx: deliveries.send_again(tx, delivery_id, tenant_id=tenant_id)
            )
            if found is not None:
                self._on_noted()
                self.wakeup()
                return found
        raise NotFound("There is no such delivery." if tenant_id is None else "There is no such delivery of yours.")

    async def send_test(self, tenant_id: str) -> SendResult:
        """Try the tenant's webhook with a message that tells of nothing, once; nothing of it is kept."""
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            webhook, at = await deliveries.webhook(tx, tenant_id), await deliveries.now(tx)
        if webhook is None or webhook.url is None:
            raise Conflict("There is no webhook to test: save its URL first.")
        body = test_body(at)
        return await self._sender.send(webhook.url, body, signed(body, id_=new_id(), at=at, secret=webhook.secret))

    async def close(self) -> None:
        """What is being sent is sent again by somebody else, once its claim has run out; what was sent is noted."""
        for task in (tasks := self._tasks()):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in self._noting.values():
            await each.idle()
        await self._sender.close()

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [task for tasks in self._under_way.values() for task in tasks]

    async def _start_due(self, shard: str) -> int:
        under_way, started = self._under_way[shard], 0
        try:
            while (room := MOST_UNDER_WAY - len(under_way)) > 0:
                due = await self._claim(shard, limit=min(room, AT_ONCE))
                for delivery in due:
                    task = asyncio.create_task(self._deliver(shard, delivery))
                    under_way.add(task)
                    task.add_done_callback(lambda task: self._ended(shard, task))
                started += len(due)
                if not due:
                    break
        except DatabaseUnavailable:
            log.info("webhook.shard_down", shard=shard)
        return started

    def _ended(self, shard: str, task: asyncio.Task[None]) -> None:
        if len(self._under_way[shard]) >= MOST_UNDER_WAY:
            # there is room again
            self.wakeup()
        self._under_way[shard].discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # what came of it is not known; it is sent again once its claim has run out
            log.warning("webhook.not_noted", shard=shard, error=repr(error))

    async def _claim(self, shard: str, *, limit: int) -> list[_Delivery]:
        async def work(tx: Tx) -> list[_Delivery]:
            claimed = await deliveries.claim(tx, limit=limit, lease_seconds=LEASE_SECONDS)
            if not claimed:
                return []
            jobs = await deliveries.ended_jobs(tx, [each.job_id for each in claimed])
            tenants = {each.tenant_id for each in claimed}
            secrets = await deliveries.secrets_of(tx, tenants)
            for tenant_id in sorted(tenants - secrets.keys()):
                secrets[tenant_id] = (await deliveries.ensure_secret(tx, tenant_id, new_secret())).secret
            return [_Delivery(claimed=each, job=jobs[each.job_id], secret=secrets[each.tenant_id]) for each in claimed]

        with self._databases.watched(shard):
            return await self._databases.shard(shard).run(TransactionStep.WEBHOOK_CLAIM, work)

    async def _deliver(self, shard: str, delivery: _Delivery) -> None:
        claimed, body = delivery.claimed, delivery.job.body()
        headers = signed(body, id_=claimed.id, at=claimed.at, secret=delivery.secret)
        outcome = outcome_of(claimed, await self._sender.send(claimed.url, body, headers))
        await self._noting[shard].call(outcome)
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

    def _group_commit(self, shard: str) -> GroupCommit[DeliveryOutcome, None]:
        return GroupCommit(lambda outcomes: self._note(shard, outcomes))

    async def _note(self, shard: str, outcomes: Sequence[DeliveryOutcome]) -> Sequence[None]:
        await self._databases.shard(shard).run(TransactionStep.WEBHOOK_NOTE, lambda tx: deliveries.note(tx, outcomes))
        self._on_noted()
        return [None] * len(outcomes)


def outcome_of(claimed: Claimed, sent: SendResult) -> DeliveryOutcome:
    """Delivered, to be tried again after a wait that grows, or given up."""
    waits = len(WAITS_SECONDS)
    if sent.is_ok:
        status = DeliveryStatus.DELIVERED
    else:
        status = DeliveryStatus.PENDING if claimed.attempts <= waits else DeliveryStatus.GIVEN_UP
    return DeliveryOutcome(
        id=claimed.id,
        attempts=claimed.attempts,
        status=status,
        wait_seconds=WAITS_SECONDS[min(claimed.attempts, waits) - 1],
        last_status_code=sent.status_code,
        last_error=sent.error,
    )
