"""The reaper ends leases whose workers fell silent, and dispatches that nobody may lease any more."""

from datetime import datetime

import structlog

from comfyrelay.domain import lifecycle
from comfyrelay.domain.failover import FailoverPolicy
from comfyrelay.domain.lifecycle import Dispatch, Move
from comfyrelay.services.databases import Databases
from comfyrelay.services.outbox.delivery import OutboxDelivery
from comfyrelay.services.queue import decisions
from comfyrelay.services.queue.decisions import Decision
from comfyrelay.services.steps import Step
from comfyrelay.store.central import dispatches
from comfyrelay.store.database import Tx
from comfyrelay.store.outbox import OutboxEntry
from comfyrelay.store.wakeup import Wakeup

log = structlog.get_logger(__name__)

AT_ONCE = 500


class Reaper:
    def __init__(
        self, databases: Databases, delivery: OutboxDelivery, wakeup: Wakeup, *, policy: FailoverPolicy
    ) -> None:
        self._databases = databases
        self._delivery = delivery
        self._wakeup = wakeup
        self._policy = policy

    async def run_once(self) -> int:
        """Reap until nothing is due; returns how many dispatches were moved."""
        reaped = 0
        while True:
            async with self._databases.central.read() as tx:
                due = [
                    *await dispatches.expired(tx, limit=AT_ONCE),
                    *await dispatches.exhausted(tx, limit=AT_ONCE),
                ]
            moved = await self._reap(due) if due else 0
            reaped += moved
            if moved < AT_ONCE:
                return reaped

    async def _reap(self, due: list[int]) -> int:
        async def work(tx: Tx) -> tuple[list[OutboxEntry], int]:
            # Looking and reaping are two steps: a heartbeat may have come in between, so each is judged again.
            found, now = await dispatches.lock(tx, sorted(due))
            moves = [move for each in found.values() if (move := _judge(each, now)) is not None]
            decided = [Decision(move=each, by="reap") for each in moves]
            return await decisions.write(tx, decided, now=now, policy=self._policy), len(moves)

        entries, count = await self._databases.central.run(Step.REAP, work)
        if count:
            log.info("reaper.reaped", count=count)
            await self._wakeup.notify()
            await self._delivery.deliver(entries)
        return count


def _judge(dispatch: Dispatch, now: datetime) -> Move | None:
    return lifecycle.expire(dispatch, now=now) or lifecycle.exhaust(dispatch, now=now)
