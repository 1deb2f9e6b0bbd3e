"""Expire leases without heartbeats, and fail dispatches that have no attempts left or no worker left to try.

The worker of an expired lease may still report until the grace period is over or an idle worker could run the job.
Each process knows only its own polls, so it expires the leases of jobs that its own pollers could run.

A worker that sends heartbeats and misses three is considered dead: its leases end long before they expire. If it was
only unreachable, it gets back its leases, except those whose jobs another worker has started
(`HeartbeatService.revive`).
"""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta

import structlog

from comfyrelay.domain.queue import lifecycle, lost_leases
from comfyrelay.domain.queue.dispatch import Dispatch, Transition
from comfyrelay.services.context import ServiceContext
from comfyrelay.services.queue.decisions import Decisions
from comfyrelay.services.queue.demand import Demand
from comfyrelay.services.queue.leasing import LeaseRequest
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central.queue import memory, reaping

log = structlog.get_logger(__name__)

# Maximum number of job ids in a log line.
MAX_LOGGED = 20
MAX_AT_ONCE = 500
# A job that ran out of memory waits this long for a worker on which it has not been tried.
UNTRIED_WORKER_WAIT = timedelta(minutes=10)
# After a longer pause between two passes, this process or the database was down and may have missed heartbeats.
MAX_PAUSE = timedelta(seconds=30)


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
        self._ttl = timedelta(seconds=context.settings.lease_ttl_seconds)
        self._silence = timedelta(seconds=context.settings.worker_offline_seconds)
        self._max_pause = max(MAX_PAUSE, timedelta(seconds=3 * context.settings.reaper_interval_seconds))
        # By the clock of the database: the time since which this process has been hearing workers, and its last pass.
        self._listening_since: datetime | None = None
        self._last_pass: datetime | None = None

    async def run_once(self) -> int:
        """Reap until nothing is due, and return the number of changed dispatches."""
        async with self._databases.central.read() as tx:
            work = await reaping.work(
                tx,
                silence_seconds=self._silence.total_seconds(),
                out_of_memory_seconds=UNTRIED_WORKER_WAIT.total_seconds(),
            )
        heard_for = self._note_pass(work.now)
        reaped = 0
        if work.has_expired and (wanted := await self._demand.late(self._waiting())):
            reaped += await self._reap(wanted, wanted=wanted)
        if work.has_silent and heard_for >= self._silence:
            reaped += await self._reap_silent()
        if work.has_out_of_memory and heard_for >= UNTRIED_WORKER_WAIT:
            reaped += await self._fail_out_of_memory()
        if reaped or work.has_expired or work.has_exhausted:
            reaped += await self._reap_due()
        return reaped

    def _note_pass(self, now: datetime) -> timedelta:
        """Return the time for which this process has been hearing workers without a pause."""
        if self._last_pass is None or not timedelta(0) <= now - self._last_pass <= self._max_pause:
            self._listening_since = now
        self._last_pass = now
        return now - (self._listening_since or now)

    async def _reap_due(self) -> int:
        """Reap expired leases and dispatches without attempts."""
        reaped = 0
        while True:
            async with self._databases.central.read() as tx:
                due = [
                    *await reaping.expired(tx, grace_seconds=self._grace.total_seconds(), limit=MAX_AT_ONCE),
                    *await reaping.exhausted(tx, limit=MAX_AT_ONCE),
                ]
            count = await self._reap(due) if due else 0
            reaped += count
            if count < MAX_AT_ONCE:
                return reaped

    async def _reap_silent(self) -> int:
        """End the leases of dead workers."""
        async with self._databases.central.read() as tx:
            due = await reaping.silent(tx, seconds=self._silence.total_seconds(), limit=MAX_AT_ONCE)

        def judge(dispatch: Dispatch, now: datetime) -> Transition | None:
            # A heartbeat may have arrived since the dispatch was found.
            if lost_leases.was_heard(dispatch, since=now - self._silence, ttl=self._ttl):
                return None
            return lifecycle.expire_lost(dispatch, now=now)

        decided = await self._decisions.decide(TransactionStep.REAP, due, judge, by=lost_leases.SILENT)
        if decided.transitions:
            workers = sorted({str(transition.before.worker_id) for transition in decided.transitions})
            log.warning("workers.silent", workers=workers, **_log_fields(decided.transitions))
        return len(decided.transitions)

    async def _fail_out_of_memory(self) -> int:
        """Fail jobs that ran out of memory on every worker that can run them."""
        async with self._databases.central.read() as tx:
            waiting = await reaping.out_of_memory(
                tx, for_seconds=UNTRIED_WORKER_WAIT.total_seconds(), limit=MAX_AT_ONCE
            )
            due = []
            for dispatch in waiting:
                workers = await memory.capable_workers(tx, dispatch, offline_seconds=self._silence.total_seconds())
                if all(worker.worker_id in dispatch.memory_failures for worker in workers):
                    due.append(dispatch.id)
        if not due:
            return 0
        decided = await self._decisions.decide(
            TransactionStep.REAP,
            due,
            lambda dispatch, now: lifecycle.fail_out_of_memory(dispatch, now=now),
            by="reap",
        )
        return len(decided.transitions)

    async def _reap(self, due: Sequence[int], *, wanted: Collection[int] = ()) -> int:
        def judge(dispatch: Dispatch, now: datetime) -> Transition | None:
            has_idle_worker = dispatch.id in wanted
            expired = lifecycle.expire(dispatch, now=now, grace=self._grace, has_idle_worker=has_idle_worker)
            return expired or lifecycle.fail_exhausted(dispatch, now=now)

        # Each dispatch is checked again under lock, because a heartbeat may have arrived since it was found.
        decided = await self._decisions.decide(TransactionStep.REAP, due, judge, by="reap")
        if decided.transitions:
            log.info("leases.expired", wanted=len(wanted), **_log_fields(decided.transitions))
        return len(decided.transitions)


def _log_fields(transitions: Sequence[Transition]) -> dict[str, object]:
    """Return the number of jobs for the log, and the ids of the first jobs."""
    job_ids = [transition.before.tenant_job_id for transition in transitions[:MAX_LOGGED]]
    return {"count": len(transitions), "job_ids": job_ids}
