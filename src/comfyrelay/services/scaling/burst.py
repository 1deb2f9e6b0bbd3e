"""Jobs that wait for too long go to the cloud, within what that may cost; and come back when nobody is left there.

Everything is counted and decided in one transaction, under a lock: two servers never both spend the last of the money.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

import structlog

from comfyrelay.domain import lifecycle
from comfyrelay.domain.lifecycle import Dispatch, Move
from comfyrelay.domain.records.fleet import Burst
from comfyrelay.domain.scaling.burst import (
    BurstDecision,
    BurstPlan,
    BurstSnapshot,
    Money,
    Runner,
    WaitingJob,
    accepted_wait,
    decide_bursts,
)
from comfyrelay.domain.scaling.snapshot import MachineState, SeenMachine
from comfyrelay.domain.scaling.spec import MachineProviderName
from comfyrelay.domain.scaling.spec_json import machines_from_json, scaling_from_json
from comfyrelay.domain.scaling.staffing import UNKNOWN_JOB_SECONDS
from comfyrelay.domain.states import Provider, Stage
from comfyrelay.hint import Hint
from comfyrelay.services.databases import Databases
from comfyrelay.services.paging import Listed
from comfyrelay.services.queue.decisions import Decided, Decisions
from comfyrelay.services.steps import Step
from comfyrelay.store.central import blocks, catalogue, dispatches, gaps
from comfyrelay.store.central.scaling import bursts
from comfyrelay.store.central.scaling.bursts import Held, Making, NewBurst, Serving, Waiting
from comfyrelay.store.database import Tx

log = structlog.get_logger(__name__)

# So many of each workflow are looked at: what waits behind them is looked at once they have gone.
QUEUED_AT_ONCE = 2000
# Of a fleet that has launched nothing yet.
BOOT_SECONDS = 180.0
# Without a hint: the time alone makes a wait too long, and workers come and go.
LOOK_SECONDS = 5.0


class Bursting:
    def __init__(
        self,
        databases: Databases,
        decisions: Decisions,
        *,
        hint: Hint,
        limit_micros_per_hour: int | None,
        worker_stale_seconds: float,
    ) -> None:
        """`hint` is given when something was queued that may go to the cloud."""
        self._databases = databases
        self._decisions = decisions
        self._hint = hint
        self._limit_micros = limit_micros_per_hour
        self._stale_seconds = worker_stale_seconds
        self._stays: dict[Stage, Mapping[int, str]] = {}

    async def run_once(self, stage: Stage) -> Sequence[BurstDecision]:
        """Send to the cloud what should go there, and bring back what must come; returns what was done."""
        async with self._databases.central.read() as tx:
            plan = await self._plan(tx, stage)
        self._stays[stage] = plan.stays
        if not plan.moves:
            return []
        done, decided = await self._databases.central.run(Step.BURST, lambda tx: self._move(tx, stage))
        await self._decisions.announce(decided)
        for each in done:
            log.info("burst.moved", dispatch=each.dispatch_id, to=each.to, reason=each.reason)
        return done

    async def look(self) -> None:
        """At all stages; then wait for a hint, or until it is time to look again."""
        for stage in Stage:
            await self.run_once(stage)
        await self._hint.wait(LOOK_SECONDS)

    def why_here(self, dispatch_id: int) -> str | None:
        """Why a job that waits for longer than it accepts was not sent to the cloud when this process last looked."""
        return next((found for each in self._stays.values() if (found := each.get(dispatch_id))), None)

    async def page(
        self, *, workflow_slug: str | None = None, cursor: int | None = None, limit: int
    ) -> Listed[tuple[Burst, str]]:
        """Those that went, newest first, each with the slug of its workflow."""
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
        # seen anew: what was seen before the lock may be spent, leased or gone
        plan = await self._plan(tx, stage)
        wanted = {each.dispatch_id: each for each in plan.moves}

        def judge(dispatch: Dispatch, _now: datetime) -> Move | None:
            return _judged(dispatch, wanted[dispatch.id])

        if not wanted:
            return [], Decided()
        decided = await self._decisions.decide_in(tx, wanted, judge, by="burst")
        done = [wanted[each.after.id] for each in decided.moves]
        await bursts.write(tx, [_row(each, stage) for each in done if each.to is Provider.CLOUD])
        return done, decided

    async def _plan(self, tx: Tx, stage: Stage) -> BurstPlan:
        limits = await bursts.limits(tx)
        gone = await bursts.open_workflows(tx)
        if not limits and not gone:
            return BurstPlan(moves=(), stays={})
        return decide_bursts(await self._snapshot(tx, stage, limits, wanted=limits.keys() | gone))

    async def _snapshot(
        self, tx: Tx, stage: Stage, limits: Mapping[int, int | None], *, wanted: set[int]
    ) -> BurstSnapshot:
        workers = await bursts.serving(tx, stage=stage, stale_seconds=self._stale_seconds)
        making = [each for each in await bursts.making(tx, stage=stage) if _makes_machines(each)]
        # what else those run who run what may burst: it is in the way
        runnable = [each.workflow_ids for each in workers] + [each.workflow_ids for each in making]
        related = wanted.union(*(each for each in runnable if each & wanted))
        learnt = await bursts.durations(tx, related)
        now = await dispatches.now(tx)
        queues = {
            provider: [
                _job(each, limits, learnt, now)
                for each in await bursts.queue(
                    tx,
                    stage=stage,
                    provider=provider,
                    workflow_ids=related,
                    most=QUEUED_AT_ONCE,
                    down_pools=self._databases.down(),
                )
            ]
            for provider in Provider
        }
        if not any(each.may_burst or each.has_burst for queue in queues.values() for each in queue):
            return BurstSnapshot(here=(), cloud=(), queue=(), money=Money())
        spent = await bursts.spent(tx)
        return BurstSnapshot(
            here=[
                *await _runners(tx, workers, Provider.SELF_HOSTED, learnt, now),
                *(runner for each in making for runner in _booting(each, now)),
            ],
            cloud=await _runners(tx, workers, Provider.CLOUD, learnt, now),
            queue=queues[Provider.SELF_HOSTED],
            cloud_queue=queues[Provider.CLOUD],
            money=Money(
                limit_micros=self._limit_micros,
                spent_micros=sum(spent.values()),
                workflow_limit_micros={id_: limit for id_, limit in limits.items() if limit is not None},
                workflow_spent_micros=spent,
            ),
        )


def _judged(dispatch: Dispatch, decision: BurstDecision) -> Move | None:
    if decision.to is Provider.CLOUD:
        return lifecycle.burst(dispatch, expected_cost_micros=decision.expected_cost_micros, reason=decision.reason)
    return lifecycle.come_back(dispatch, reason=decision.reason)


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


def _job(
    row: Waiting, limits: Mapping[int, int | None], learnt: Mapping[tuple[int, int], float], now: datetime
) -> WaitingJob:
    return WaitingJob(
        id=row.id,
        workflow=row.workflow_id,
        workflow_hash=row.workflow_hash,
        seconds=_seconds(learnt, row.workflow_id, row.effect_id, row.effect_seconds),
        waited_seconds=max(0.0, (now - row.waited_from).total_seconds()),
        accepts_seconds=accepted_wait(row.max_wait_seconds, row.effect_max_wait_seconds, row.tenant_max_wait_seconds),
        may_burst=row.workflow_id in limits,
        has_burst=row.expected_cost_micros is not None,
        cloud_micros_per_second=row.cloud_micros_per_second,
    )


def _seconds(
    learnt: Mapping[tuple[int, int], float], workflow_id: int, effect_id: int | None, last: float | None = None
) -> float:
    """How long it should run: as its effect did, else as its workflow did."""
    found = learnt.get((workflow_id, effect_id or 0)) or learnt.get((workflow_id, 0)) or last
    return UNKNOWN_JOB_SECONDS if found is None else found


async def _runners(
    tx: Tx,
    workers: Sequence[Serving],
    provider: Provider,
    learnt: Mapping[tuple[int, int], float],
    now: datetime,
) -> list[Runner]:
    serving = [each for each in workers if _serves(each, provider)]
    ids = [each.worker_id for each in serving]
    refused = await blocks.standing(tx, ids)
    if provider is Provider.SELF_HOSTED:
        refused = refused | await gaps.pairs_of(tx, ids)
    held = await bursts.held(tx, ids)
    return [
        Runner(
            machine=_machine(each, [lease for lease in held if lease.worker_id == each.worker_id], learnt, now),
            workflows=each.workflow_ids,
            refused_hashes=frozenset(hash_ for worker_id, hash_ in refused if worker_id == each.worker_id),
        )
        for each in serving
    ]


def _serves(worker: Serving, provider: Provider) -> bool:
    """One that says nothing of it serves what everybody serves; only who says so speaks to the cloud."""
    return provider in (worker.providers or (Provider.SELF_HOSTED,))


def _machine(
    worker: Serving, held: Sequence[Held], learnt: Mapping[tuple[int, int], float], now: datetime
) -> SeenMachine:
    left = [
        max(0.0, _seconds(learnt, each.workflow_id, each.effect_id) - (now - each.leased_at).total_seconds())
        for each in held
    ]
    running = min(worker.slots, len(left))
    return SeenMachine(
        id=worker.worker_id,
        state=MachineState.BUSY if running else MachineState.READY,
        slots=worker.slots,
        leases=running,
        # what was fetched to run next is in the way, too
        busy_seconds_left=sum(left) / running if running else 0.0,
    )


def _makes_machines(fleet: Making) -> bool:
    scaling = scaling_from_json(fleet.scaling)
    is_made = machines_from_json(fleet.machines).provider is not MachineProviderName.STATIC
    return is_made and not scaling.is_paused and not scaling.is_dry_run


def _booting(fleet: Making, now: datetime) -> list[Runner]:
    """The machines that boot; and one that could be ordered at any moment, so that nobody goes to the cloud because
    nobody has ordered it yet."""
    spec, scaling = machines_from_json(fleet.machines), scaling_from_json(fleet.scaling)
    boot_seconds = BOOT_SECONDS if fleet.boot_seconds is None else fleet.boot_seconds
    lefts = [max(0.0, boot_seconds - (now - each).total_seconds()) for each in fleet.booting_since]
    if fleet.present < scaling.limits.max_machines:
        lefts.append(boot_seconds)
    return [
        Runner(
            machine=SeenMachine(
                id=f"booting-{number}", state=MachineState.BOOTING, slots=spec.slots, boot_seconds_left=left
            ),
            workflows=fleet.workflow_ids,
        )
        for number, left in enumerate(lefts)
    ]
