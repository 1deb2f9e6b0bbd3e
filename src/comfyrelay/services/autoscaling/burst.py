"""Send jobs that wait too long to the cloud, within a budget, and bring them back if no cloud worker is left.

Each round runs in one transaction under a lock, so two servers never both spend the last of the budget.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

import structlog

from comfyrelay.domain.autoscaling.burst import (
    BurstDecision,
    BurstPlan,
    Money,
    decide_bursts,
)
from comfyrelay.domain.queue import lifecycle
from comfyrelay.domain.queue.lifecycle import Dispatch, Transition
from comfyrelay.domain.queue.states import Provider, Stage
from comfyrelay.domain.records.workers import BurstRecord
from comfyrelay.services.autoscaling.burst_observation import take_snapshot
from comfyrelay.services.autoscaling.observations import WorkerLimits
from comfyrelay.services.databases import Databases
from comfyrelay.services.paging import Listed
from comfyrelay.services.queue.decisions import Decided, Decisions
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central import catalogue
from comfyrelay.store.central.autoscaling import bursts
from comfyrelay.store.central.autoscaling.bursts import NewBurst
from comfyrelay.store.database import Tx
from comfyrelay.wakeup import Wakeup

log = structlog.get_logger(__name__)

# Without a wakeup: waits grow with time, and workers come and go.
LOOK_SECONDS = 5.0


class Bursting:
    def __init__(
        self,
        databases: Databases,
        decisions: Decisions,
        *,
        wakeup: Wakeup,
        limit_micros_per_hour: int | None,
        worker_stale_seconds: float,
        places: WorkerLimits,
    ) -> None:
        """`wakeup` is notified when a job that may go to the cloud is queued."""
        self._databases = databases
        self._decisions = decisions
        self._wakeup = wakeup
        self._limit_micros = limit_micros_per_hour
        self._stale_seconds = worker_stale_seconds
        self._places = places
        self._stays: dict[Stage, Mapping[int, str]] = {}

    async def run_once(self, stage: Stage) -> Sequence[BurstDecision]:
        """Move jobs to and from the cloud. Returns what was done."""
        async with self._databases.central.read() as tx:
            plan = await self._plan(tx, stage)
        self._stays[stage] = plan.stays
        if not plan.moves:
            return []
        done, decided = await self._databases.central.run(TransactionStep.BURST, lambda tx: self._move(tx, stage))
        await self._decisions.announce(decided)
        for each in done:
            log.info("burst.moved", dispatch=each.dispatch_id, to=each.to, reason=each.reason)
        return done

    async def run_stages(self) -> None:
        """Run `run_once` for all stages, then wait for a wakeup or the next tick."""
        async with self._databases.central.read() as tx:
            concerns_any = await bursts.concerns_any(tx)
        # one cheap query if no job may go to the cloud
        if concerns_any:
            for stage in Stage:
                await self.run_once(stage)
        else:
            self._stays.clear()
        await self._wakeup.wait(LOOK_SECONDS)

    def why_here(self, dispatch_id: int) -> str | None:
        """Why a job that waits longer than it accepts was not sent to the cloud in the last round of this process."""
        return next((found for stay in self._stays.values() if (found := stay.get(dispatch_id))), None)

    async def page(
        self, *, workflow_slug: str | None = None, cursor: int | None = None, limit: int
    ) -> Listed[tuple[BurstRecord, str]]:
        """Bursts, newest first, with the slugs of their workflows."""
        async with self._databases.central.read() as tx:
            workflow_id = None
            if workflow_slug is not None:
                workflow = await catalogue.workflow(tx, slug=workflow_slug)
                if workflow is None:
                    return Listed(items=[])
                workflow_id = workflow.id
            found, before = await bursts.page(tx, workflow_id=workflow_id, before_id=cursor, limit=limit)
            slugs = await catalogue.workflow_slugs(tx, {each.workflow_id for each in found})
        items = [(each, slugs[each.workflow_id]) for each in found]
        return Listed(items=items, next_cursor=None if before is None else str(before))

    async def _move(self, tx: Tx, stage: Stage) -> tuple[Sequence[BurstDecision], Decided]:
        await bursts.lock(tx)
        # observed again under the lock: the budget may be spent, or the job leased
        plan = await self._plan(tx, stage)
        wanted = {move.dispatch_id: move for move in plan.moves}

        def judge(dispatch: Dispatch, _now: datetime) -> Transition | None:
            return _judged(dispatch, wanted[dispatch.id])

        if not wanted:
            return [], Decided()
        decided = await self._decisions.decide_in(tx, wanted, judge, by="burst")
        done = [wanted[transition.after.id] for transition in decided.transitions]
        await bursts.write(tx, [_row(each, stage) for each in done if each.to is Provider.CLOUD])
        return done, decided

    async def _plan(self, tx: Tx, stage: Stage) -> BurstPlan:
        limits = await bursts.limits(tx)
        gone = await bursts.open_workflows(tx)
        if not limits and not gone:
            return BurstPlan(moves=(), stays={})
        money = Money(
            limit_micros=self._limit_micros,
            workflow_limit_micros={id_: limit for id_, limit in limits.items() if limit is not None},
        )
        return decide_bursts(
            await take_snapshot(
                tx,
                stage,
                may_burst=limits.keys(),
                gone=gone,
                money=money,
                down_shards=self._databases.down(),
                stale_seconds=self._stale_seconds,
                places=self._places,
            )
        )


def _judged(dispatch: Dispatch, decision: BurstDecision) -> Transition | None:
    if decision.to is Provider.CLOUD:
        return lifecycle.burst(dispatch, expected_cost_micros=decision.expected_cost_micros, reason=decision.reason)
    return lifecycle.return_from_cloud(dispatch, reason=decision.reason)


def _row(decision: BurstDecision, stage: Stage) -> NewBurst:
    return NewBurst(
        dispatch_id=decision.dispatch_id,
        workflow_id=decision.workflow,
        stage=stage,
        expected_cost_micros=decision.expected_cost_micros,
        reason=decision.reason,
        seen={
            "wait_seconds": decision.wait_seconds,
            "cloud_wait_seconds": decision.cloud_wait_seconds,
            "accepts_seconds": decision.accepts_seconds,
        },
    )
