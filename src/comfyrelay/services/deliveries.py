"""Telling others of the ends of jobs: from a durable outbox in each tenant pool, tried until it works or is given up.

A delivery is written with the end that it tells of. Whoever sends it claims it first for longer than sending can take;
when that process dies, another sends it again with the same id.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from comfyrelay.domain.webhooks import WAITS_SECONDS, DeliveryStatus, EndedJob, new_secret, signed
from comfyrelay.errors import PoolUnavailable
from comfyrelay.services.coalesce import Coalescer
from comfyrelay.services.databases import Databases
from comfyrelay.services.steps import Step
from comfyrelay.services.webhook_sender import Sent, WebhookSender
from comfyrelay.store import deliveries
from comfyrelay.store.database import Tx
from comfyrelay.store.deliveries import Claimed, Outcome

log = structlog.get_logger(__name__)

AT_ONCE = 50
# Longer than sending and noting down can take together.
LEASE_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Letter:
    claimed: Claimed
    job: EndedJob
    secret: str


class Deliveries:
    def __init__(self, databases: Databases, sender: WebhookSender) -> None:
        self._databases = databases
        self._sender = sender
        self._hint = asyncio.Event()
        # Attempts of this process by what came of them, for whoever measures.
        self.attempts: Counter[str] = Counter()

    def hint(self) -> None:
        """Jobs have ended: there may be something to send."""
        self._hint.set()

    async def wait(self, seconds: float) -> None:
        """Until there may be something to send."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hint.wait()
        self._hint.clear()

    async def run_once(self) -> int:
        """Send everything that is due, in every pool at once; returns how many were sent."""
        return sum(await asyncio.gather(*(self._send_due(pool) for pool in self._databases.pools)))

    async def close(self) -> None:
        await self._sender.close()

    async def _send_due(self, pool: str) -> int:
        sent = 0
        # so many receivers answer at their own pace; what came of them is written down together
        noting = Coalescer[Outcome, None](lambda outcomes: self._note(pool, outcomes))
        try:
            while letters := await self._claim(pool):
                await asyncio.gather(*(self._deliver(each, noting) for each in letters))
                sent += len(letters)
        except PoolUnavailable:
            log.info("webhook.pool_down", pool=pool)
        return sent

    async def _claim(self, pool: str) -> list[_Letter]:
        async def work(tx: Tx) -> list[_Letter]:
            claimed = await deliveries.claim(tx, limit=AT_ONCE, lease_seconds=LEASE_SECONDS)
            if not claimed:
                return []
            jobs = await deliveries.ended_jobs(tx, [each.job_id for each in claimed])
            tenants = {each.tenant_id for each in claimed}
            secrets = await deliveries.secrets_of(tx, tenants)
            for tenant_id in sorted(tenants - secrets.keys()):
                secrets[tenant_id] = (await deliveries.ensure_secret(tx, tenant_id, new_secret())).secret
            return [_Letter(claimed=each, job=jobs[each.job_id], secret=secrets[each.tenant_id]) for each in claimed]

        with self._databases.watched(pool):
            return await self._databases.pool(pool).run(Step.WEBHOOK_CLAIM, work)

    async def _deliver(self, letter: _Letter, noting: Coalescer[Outcome, None]) -> None:
        claimed, body = letter.claimed, letter.job.body()
        headers = signed(body, id_=claimed.id, at=claimed.at, secret=letter.secret)
        outcome = outcome_of(claimed, await self._sender.send(claimed.url, body, headers))
        await noting.call(outcome)
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

    async def _note(self, pool: str, outcomes: Sequence[Outcome]) -> Sequence[None]:
        await self._databases.pool(pool).run(Step.WEBHOOK_NOTE, lambda tx: deliveries.note(tx, outcomes))
        return [None] * len(outcomes)


def outcome_of(claimed: Claimed, sent: Sent) -> Outcome:
    """Delivered, to be tried again after a wait that grows, or given up."""
    waits = len(WAITS_SECONDS)
    if sent.is_ok:
        status = DeliveryStatus.DELIVERED
    else:
        status = DeliveryStatus.PENDING if claimed.attempts <= waits else DeliveryStatus.GIVEN_UP
    return Outcome(
        id=claimed.id,
        attempts=claimed.attempts,
        status=status,
        wait_seconds=WAITS_SECONDS[min(claimed.attempts, waits) - 1],
        last_status_code=sent.status_code,
        last_error=sent.error,
    )
