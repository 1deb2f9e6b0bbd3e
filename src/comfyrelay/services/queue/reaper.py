"""The reaper ends leases whose workers fell silent, and dispatches that nobody may lease any more.

A lease past its end is late: its holder may still speak, until a worker waits that could run the job, or the grace is
over. Who waits is known to the process where it waits, so each process ends what its own pollers could run.
"""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta

import structlog

from comfyrelay.domain.queue import lifecycle
from comfyrelay.domain.queue.lifecycle import Dispatch, Transition
from comfyrelay.services.databases import Databases
from comfyrelay.services.queue.decisions import Decisions
from comfyrelay.services.queue.demand import Demand
from comfyrelay.services.queue.leasing import LeaseRequest
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central.queue import dispatches

log = structlog.get_logger(__name__)

AT_ONCE = 500


class Reaper:
    def __init__(
        self,
        databases: Databases,
        decisions: Decisions,
        demand: Demand,
        *,
        waiting: Callable[[], Sequence[LeaseRequest]],
        grace: timedelta,
    ) -> None:
        """`waiting` are the polls of workers that have got nothing; `grace` is how long a lease may be late."""
        self._databases = databases
        self._decisions = decisions
        self._demand = demand
        self._waiting = waiting
        self._grace = grace

    async def run_once(self) -> int:
        """Reap until nothing is due; returns how many dispatches were moved."""
        wanted = await self._demand.late(self._waiting())
        reaped = await self._reap(wanted, wanted=wanted) if wanted else 0
        while True:
            async with self._databases.central.read() as tx:
                due = [
                    *await dispatches.expired(tx, grace_seconds=self._grace.total_seconds(), limit=AT_ONCE),
                    *await dispatches.exhausted(tx, limit=AT_ONCE),
                ]
            moved = await self._reap(due) if due else 0
            reaped += moved
            if moved < AT_ONCE:
                return reaped

    async def _reap(self, due: Sequence[int], *, wanted: Collection[int] = ()) -> int:
        def judge(dispatch: Dispatch, now: datetime) -> Transition | None:
            has_idle_worker = dispatch.id in wanted
            expired = lifecycle.expire(dispatch, now=now, grace=self._grace, has_idle_worker=has_idle_worker)
            return expired or lifecycle.fail_exhausted(dispatch, now=now)

        # Finding and reaping are two steps: a heartbeat may have come in between, so each is judged once more.
        decided = await self._decisions.decide(TransactionStep.REAP, due, judge, by="reap")
        if decided.transitions:
            log.info("reaper.reaped", count=len(decided.transitions), wanted=len(wanted))
        return len(decided.transitions)
