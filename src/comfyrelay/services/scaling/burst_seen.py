"""What is seen before a job goes to the cloud: both queues, who could run them and when, and the hour's money."""

from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime

from comfyrelay.domain.records.fleet import Fleet
from comfyrelay.domain.scaling import learning
from comfyrelay.domain.scaling.burst import BurstSnapshot, Money, Runner, WaitingJob, accepted_wait
from comfyrelay.domain.scaling.snapshot import MachineState, SeenMachine
from comfyrelay.domain.scaling.spec import MachineProviderName
from comfyrelay.domain.states import Provider, Stage
from comfyrelay.services.scaling.durations import Predictions
from comfyrelay.services.scaling.snapshots import LEAST_SECONDS_LEFT
from comfyrelay.store.central import blocks, dispatches, gaps
from comfyrelay.store.central.scaling import bursts, machines, seen
from comfyrelay.store.central.scaling.bursts import Serving, Waiting
from comfyrelay.store.central.scaling.seen import Lease
from comfyrelay.store.central.workers import serves
from comfyrelay.store.database import Tx

# So many of each workflow are looked at: what waits behind them is looked at once they have gone.
QUEUED_AT_ONCE = 2000
NEWEST_ORDERS = 50
NOTHING = BurstSnapshot(here=(), cloud=(), queue=())


@dataclass(frozen=True, kw_only=True, slots=True)
class _Times:
    now: datetime
    predictions: Predictions

    def left(self, lease: Lease) -> float:
        elapsed = (self.now - lease.leased_at).total_seconds()
        return max(LEAST_SECONDS_LEFT, self.predictions.seconds(lease.workflow_id, lease.effect_id) - elapsed)


async def take_snapshot(
    tx: Tx,
    stage: Stage,
    *,
    may_burst: Set[int],
    gone: Set[int],
    money: Money,
    down_pools: Collection[str],
    stale_seconds: float,
) -> BurstSnapshot:
    """`may_burst` are the workflows whose jobs may go to the cloud, `gone` those of which some are there; of `money`
    what is spent is found out."""
    workers = await bursts.serving(tx, stage=stage, stale_seconds=stale_seconds)
    fleets = [each for each in await seen.fleets_of(tx) if each.stage == stage and _makes_machines(each)]
    mapped = await seen.workflows_of(tx, [each.id for each in fleets])
    wanted = may_burst | gone
    # what else those run who run one of these is in its way
    sharing = [each for each in (*(one.workflow_ids for one in workers), *mapped.values()) if wanted & each]
    related = set(wanted).union(*sharing)
    times = _Times(now=await dispatches.now(tx), predictions=await Predictions.read(tx, related))
    queues = {
        provider: [
            _job(each, may_burst, times)
            for each in await bursts.queue(
                tx,
                stage=stage,
                provider=provider,
                workflow_ids=related,
                most=QUEUED_AT_ONCE,
                down_pools=down_pools,
            )
        ]
        for provider in Provider
    }
    if not any(each.may_burst or each.has_burst for queue in queues.values() for each in queue):
        return NOTHING
    leases = await seen.leases_of(tx, {each.fleet_id for each in workers})
    spent = await bursts.spent(tx)
    return BurstSnapshot(
        here=[
            *await _runners(tx, workers, leases, Provider.SELF_HOSTED, times),
            *[
                runner
                for fleet in fleets
                for runner in await _booting(tx, fleet, mapped.get(fleet.id, set()), workers, times.now)
            ],
        ],
        cloud=await _runners(tx, workers, leases, Provider.CLOUD, times),
        queue=queues[Provider.SELF_HOSTED],
        cloud_queue=queues[Provider.CLOUD],
        money=replace(money, spent_micros=sum(spent.values()), workflow_spent_micros=spent),
    )


def _job(row: Waiting, may_burst: Set[int], times: _Times) -> WaitingJob:
    return WaitingJob(
        id=row.id,
        workflow=row.workflow_id,
        workflow_hash=row.workflow_hash,
        seconds=times.predictions.seconds(row.workflow_id, row.effect_id),
        waited_seconds=max(0.0, (times.now - row.waited_from).total_seconds()),
        accepts_seconds=accepted_wait(row.max_wait_seconds, row.effect_max_wait_seconds, row.tenant_max_wait_seconds),
        may_burst=row.workflow_id in may_burst,
        has_burst=row.expected_cost_micros is not None,
        cloud_micros_per_second=row.cloud_micros_per_second,
    )


async def _runners(
    tx: Tx, workers: Sequence[Serving], leases: Sequence[Lease], provider: Provider, times: _Times
) -> list[Runner]:
    serving = [each for each in workers if serves(each.providers, provider)]
    ids = [each.worker_id for each in serving]
    refused = await blocks.standing(tx, ids)
    if provider is Provider.SELF_HOSTED:
        refused = refused | await gaps.pairs_of(tx, ids)
    return [
        Runner(
            machine=_machine(each, [times.left(one) for one in leases if one.worker_id == each.worker_id]),
            workflows=each.workflow_ids,
            refused_hashes=frozenset(hash_ for worker_id, hash_ in refused if worker_id == each.worker_id),
        )
        for each in serving
    ]


def _machine(worker: Serving, left: Sequence[float]) -> SeenMachine:
    running = min(worker.slots, len(left))
    return SeenMachine(
        id=worker.worker_id,
        state=MachineState.BUSY if running else MachineState.READY,
        slots=worker.slots,
        leases=running,
        # what was fetched to run next is in the way, too
        busy_seconds_left=sum(left) / running if running else 0.0,
    )


def _makes_machines(fleet: Fleet) -> bool:
    scaling = fleet.scaling_spec
    is_made = fleet.machine_spec.provider is not MachineProviderName.STATIC
    return is_made and not scaling.is_paused and not scaling.is_dry_run


async def _booting(
    tx: Tx, fleet: Fleet, workflows: Set[int], workers: Sequence[Serving], now: datetime
) -> list[Runner]:
    """The machines that boot; and one that could be ordered at any moment, so that nobody goes to the cloud because
    nobody has ordered it yet."""
    present = await machines.present(tx, [fleet.id])
    boot_seconds = learning.boot_seconds(await machines.newest(tx, fleet.id, most=NEWEST_ORDERS), fleet.machine_spec)
    here = {each.worker_id for each in workers}
    left = [
        max(0.0, boot_seconds - (now - each.ordered_at).total_seconds())
        for each in present
        if each.registered_at is None and each.ending_at is None and each.worker not in here
    ]
    if len(present) < fleet.scaling_spec.limits.max_machines:
        left.append(boot_seconds)
    slots = fleet.machine_spec.slots
    return [
        Runner(
            machine=SeenMachine(
                id=f"booting-{number}", state=MachineState.BOOTING, slots=slots, boot_seconds_left=each
            ),
            workflows=frozenset(workflows),
        )
        for number, each in enumerate(left)
    ]
