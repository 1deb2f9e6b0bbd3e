"""Move jobs that wait too long to the cloud, within a budget, and move them back if no cloud worker is online.

Each round runs in one transaction under a lock, so that two servers cannot both spend the rest of the budget.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

import structlog

from comfyrelay.domain.autoscaling.burst import BurstBudget, BurstDecision, BurstPlan, decide_bursts
from comfyrelay.domain.queue import lifecycle
from comfyrelay.domain.queue.dispatch import Dispatch, Transition
from comfyrelay.domain.queue.states import Provider, Stage
from comfyrelay.domain.records.workers import BurstRecord
from comfyrelay.services.autoscaling.burst_observation import read_burst_input
from comfyrelay.services.autoscaling.fleet_observation import WorkerLimits
from comfyrelay.services.autoscaling.loop_state import ScalingCounts
from comfyrelay.services.databases import Databases
from comfyrelay.services.paging import ResultPage
from comfyrelay.services.queue.decisions import Decided, Decisions
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central import catalogue
from comfyrelay.store.central.autoscaling import bursts
from comfyrelay.store.central.autoscaling.bursts import NewBurst
from comfyrelay.store.database import Tx
from comfyrelay.wakeup import Wakeup

log = structlog.get_logger(__name__)

# Interval of rounds without a wakeup. They are needed because waits grow, and workers register and leave.
POLL_SECONDS = 5.0
UNUSED_POLL_SECONDS = 15.0


class Bursting:
    def __init__(
        self,
        databases: Databases,
        decisions: Decisions,
        *,
        wakeup: Wakeup,
        limit_micros_per_hour: int | None,
        worker_offline_seconds: float,
        worker_limits: WorkerLimits,
        counts: ScalingCounts,
    ) -> None:
        """`wakeup` is notified when a job that may move to the cloud is queued."""
        self._databases = databases
        self._decisions = decisions
        self._wakeup = wakeup
        self._limit_micros = limit_micros_per_hour
        self._offline_seconds = worker_offline_seconds
        self._worker_limits = worker_limits
        self._counts = counts
        self._stays: dict[Stage, Mapping[int, str]] = {}

    async def run_once(self, stage: Stage) -> Sequence[BurstDecision]:
        """Move jobs to and from the cloud, and return the moves."""
        async with self._databases.central.read() as tx:
            plan = await self._plan(tx, stage)
        self._stays[stage] = plan.stays
        if not plan.moves:
            return []
        done, decided = await self._databases.central.run(TransactionStep.BURST, lambda tx: self._move(tx, stage))
        await self._decisions.announce(decided)
        for move in done:
            self._counts.bursts[str(stage), str(move.to)] += 1
            log.info("burst.moved", dispatch_id=move.dispatch_id, to=move.to, reason=move.reason)
        return done

    async def run_stages(self) -> None:
        """Run one round for each stage, then wait for a wakeup or the next round."""
        async with self._databases.central.read() as tx:
            concerns_any = await bursts.are_in_use(tx)
        # If no job may move to the cloud, a round is one cheap query.
        if concerns_any:
            for stage in Stage:
                await self.run_once(stage)
        else:
            self._stays.clear()
        # The first job that may move wakes this process.
        await self._wakeup.wait(POLL_SECONDS if concerns_any else UNUSED_POLL_SECONDS)

    def why_not_burst(self, dispatch_id: int) -> str | None:
        """Return why the last round of this process did not move a job to the cloud although it waits too long."""
        return next((found for stay in self._stays.values() if (found := stay.get(dispatch_id))), None)

    async def page(
        self, *, workflow_slug: str | None = None, cursor: int | None = None, limit: int
    ) -> ResultPage[tuple[BurstRecord, str]]:
        """Return bursts, newest first, with the slugs of their workflows."""
        async with self._databases.central.read() as tx:
            workflow_id = None
            if workflow_slug is not None:
                workflow = await catalogue.workflow(tx, slug=workflow_slug)
                if workflow is None:
                    return ResultPage(items=[])
                workflow_id = workflow.id
            found, before = await bursts.page(tx, workflow_id=workflow_id, before_id=cursor, limit=limit)
            slugs = await catalogue.workflow_slugs(tx, {burst.workflow_id for burst in found})
        items = [(burst, slugs[burst.workflow_id]) for burst in found]
        return ResultPage(items=items, next_cursor=None if before is None else str(before))

    async def _move(self, tx: Tx, stage: Stage) -> tuple[Sequence[BurstDecision], Decided]:
        await bursts.lock(tx)
        # Plan again under the lock: the budget may be spent, or the job leased.
        plan = await self._plan(tx, stage)
        moves = {move.dispatch_id: move for move in plan.moves}

        def move_dispatch(dispatch: Dispatch, _now: datetime) -> Transition | None:
            move = moves[dispatch.id]
            if move.to is Provider.CLOUD:
                return lifecycle.burst(dispatch, expected_cost_micros=move.expected_cost_micros, reason=move.reason)
            return lifecycle.return_from_cloud(dispatch, reason=move.reason)

        if not moves:
            return [], Decided()
        decided = await self._decisions.decide_in(tx, moves, move_dispatch, by="burst")
        done = [moves[transition.after.id] for transition in decided.transitions]
        await bursts.write(tx, [_row(move, stage) for move in done if move.to is Provider.CLOUD])
        return done, decided

    async def _plan(self, tx: Tx, stage: Stage) -> BurstPlan:
        limits = await bursts.limits(tx)
        in_cloud = await bursts.open_workflows(tx)
        if not limits and not in_cloud:
            return BurstPlan(moves=(), stays={})
        budget = BurstBudget(
            limit_micros=self._limit_micros,
            workflow_limit_micros={id_: limit for id_, limit in limits.items() if limit is not None},
        )
        return decide_bursts(
            await read_burst_input(
                tx,
                stage,
                may_burst=limits.keys(),
                in_cloud=in_cloud,
                budget=budget,
                down_shards=self._databases.down(),
                offline_seconds=self._offline_seconds,
                worker_limits=self._worker_limits,
            )
        )


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
