"""Expire leases without heartbeats, and fail dispatches without attempts left.

The worker of an expired lease may still report until the grace period is over or an idle worker could run the job.
Each process knows only its own polls, so it expires the leases of jobs that its own pollers could run.
"""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta

import structlog

from comfyrelay.domain.queue import lifecycle
from comfyrelay.domain.queue.dispatch import Dispatch, Transition
from comfyrelay.services.context import ServiceContext
from comfyrelay.services.queue.decisions import Decisions
from comfyrelay.services.queue.demand import Demand
from comfyrelay.services.queue.leasing import LeaseRequest
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central.queue import dispatches

log = structlog.get_logger(__name__)

MAX_AT_ONCE = 500


class Reaper:
    def __init__(
        self,
        context: ServiceContext,
        decisions: Decisions,
        demand: Demand,
        *,
        waiting: Callable[[], Sequence[LeaseRequest]],
    ) -> None:
        """`waiting` returns the polls of idle workers."""
        self._databases = context.databases
        self._decisions = decisions
        self._demand = demand
        self._waiting = waiting
        # An expired lease may still be settled for this long.
        self._grace = timedelta(seconds=context.settings.late_seconds)

    async def run_once(self) -> int:
        """Reap until nothing is due; return how many dispatches changed."""
        wanted = await self._demand.late(self._waiting())
        reaped = await self._reap(wanted, wanted=wanted) if wanted else 0
        while True:
            async with self._databases.central.read() as tx:
                due = [
                    *await dispatches.expired(tx, grace_seconds=self._grace.total_seconds(), limit=MAX_AT_ONCE),
                    *await dispatches.exhausted(tx, limit=MAX_AT_ONCE),
                ]
            count = await self._reap(due) if due else 0
            reaped += count
            if count < MAX_AT_ONCE:
                return reaped

    async def _reap(self, due: Sequence[int], *, wanted: Collection[int] = ()) -> int:
        def judge(dispatch: Dispatch, now: datetime) -> Transition | None:
            has_idle_worker = dispatch.id in wanted
            expired = lifecycle.expire(dispatch, now=now, grace=self._grace, has_idle_worker=has_idle_worker)
            return expired or lifecycle.fail_exhausted(dispatch, now=now)

        # Each dispatch is judged again under lock, because a heartbeat may have arrived since it was found.
        decided = await self._decisions.decide(TransactionStep.REAP, due, judge, by="reap")
        if decided.transitions:
            log.info("leases.expired", count=len(decided.transitions), wanted=len(wanted))
        return len(decided.transitions)
