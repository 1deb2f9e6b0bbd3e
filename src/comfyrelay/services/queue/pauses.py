"""Pause and resume a tenant's whole queue. The state is stored, and claims skip paused queues."""

import structlog

from comfyrelay.domain.queue import queue_pause
from comfyrelay.domain.queue.lifecycle import allowed_pause
from comfyrelay.domain.queue.states import PauseMode
from comfyrelay.errors import DatabaseUnavailable
from comfyrelay.services.context import ServiceContext
from comfyrelay.services.queue.decisions import Decided, Decisions
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central.queue import pauses
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant import changes, overview

log = structlog.get_logger(__name__)


class QueuePauses:
    def __init__(self, context: ServiceContext, decisions: Decisions) -> None:
        self._databases = context.databases
        self._notify_channel = context.notify_channel
        self._decisions = decisions
        self._are_own_runs_charged = context.settings.are_own_runs_charged

    async def pause(self, tenant_id: str, *, mode: PauseMode = PauseMode.AFTER) -> None:
        """Hold all queued jobs until `resume`. Prefetched jobs are returned; `now` also interrupts running ones."""

        async def work(tx: Tx) -> Decided:
            leased = (await overview.leased(tx, [tenant_id]))[tenant_id]
            prefetched = {item.job_id for item in leased if item.is_prefetched}
            return await self._decisions.decide_in(
                tx,
                pauses.leased_of(tenant_id),
                lambda dispatch, now: queue_pause.stop_lease(
                    dispatch,
                    is_prefetched=dispatch.tenant_job_id in prefetched,
                    mode=allowed_pause(dispatch, mode, are_own_runs_charged=self._are_own_runs_charged),
                    now=now,
                ),
                by="pause",
            )

        # Commit the pause first: a concurrent claim may still lease a job, which the second transaction then sees.
        await self._databases.central.run(TransactionStep.CONTROL, lambda tx: pauses.pause(tx, tenant_id))
        await self._decisions.announce(await self._databases.central.run(TransactionStep.CONTROL, work))
        await self._show(tenant_id)

    async def resume(self, tenant_id: str) -> bool:
        """Release the held jobs in their old order, and return whether the queue was paused."""

        async def work(tx: Tx) -> tuple[bool, Decided]:
            was_paused = await pauses.resume(tx, tenant_id)
            judged = await self._decisions.decide_in(
                tx, pauses.leased_of(tenant_id), lambda dispatch, _now: queue_pause.resume_lease(dispatch), by="resume"
            )
            return was_paused, judged

        was_paused, decided = await self._databases.central.run(TransactionStep.CONTROL, work)
        await self._decisions.announce(decided)
        await self._notify_channel.notify()
        await self._show(tenant_id)
        return was_paused

    async def _show(self, tenant_id: str) -> None:
        """Record a change without jobs, so that open pages read the queue again."""
        try:
            shard = await self._databases.shard_of(tenant_id)
            await shard.run(TransactionStep.CONTROL, lambda tx: changes.write(tx, {tenant_id: []}))
        except DatabaseUnavailable:
            # The pause is effective anyway. Pages show it when they reconnect.
            log.warning("queue.pause_not_shown", tenant_id=tenant_id)
