"""The input of burst decisions: both queues, runners and this hour's budget."""

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import replace
from datetime import datetime

from comfyrelay.domain.autoscaling.burst import BurstBudget, BurstInput, BurstRunner, WaitingJob, accepted_wait
from comfyrelay.domain.autoscaling.limits import headroom
from comfyrelay.domain.autoscaling.observation import MachineState, ObservedFleet, ObservedMachine
from comfyrelay.domain.autoscaling.spec import MachineProviderName
from comfyrelay.domain.queue.states import Provider, Stage
from comfyrelay.domain.records.workers import FleetRecord
from comfyrelay.services.autoscaling.durations import Predictions
from comfyrelay.services.autoscaling.observations import (
    NEWEST_ORDERS,
    Rows,
    WorkerLimits,
    by_field,
    by_worker,
    seen_fleet,
)
from comfyrelay.store.central.autoscaling import bursts, machines, observations
from comfyrelay.store.central.autoscaling.bursts import ServingWorker, WaitingDispatch
from comfyrelay.store.central.queue import blocks, dispatches, memory, missing_requirements
from comfyrelay.store.central.workers.workers import count_of_fleets, serves
from comfyrelay.store.database import Tx

# Jobs per workflow to consider; later ones are considered once these have gone.
QUEUED_AT_ONCE = 2000
NOTHING = BurstInput(here=(), cloud=(), queue=())


async def take_snapshot(
    tx: Tx,
    stage: Stage,
    *,
    may_burst: Set[int],
    gone: Set[int],
    money: BurstBudget,
    down_shards: Collection[str],
    stale_seconds: float,
    places: WorkerLimits,
) -> BurstInput:
    """`may_burst` are workflows whose jobs may go to the cloud, `gone` those with jobs there; spending is added to
    `money`."""
    workers = await bursts.serving(tx, stage=stage, stale_seconds=stale_seconds)
    fleets = [each for each in await observations.fleets_of(tx) if each.stage == stage]
    mapped = await observations.workflows_of(tx, [each.id for each in fleets])
    wanted = may_burst | gone
    # other workflows of the same workers compete for their slots
    sharing = [served for served in (*(worker.workflow_ids for worker in workers), *mapped.values()) if wanted & served]
    related = set(wanted).union(*sharing)
    now, predictions = await dispatches.now(tx), await Predictions.read(tx, related)
    queues = {
        provider: [
            _job(row, may_burst, predictions, now)
            for row in await bursts.queue(
                tx,
                stage=stage,
                provider=provider,
                workflow_ids=related,
                most=QUEUED_AT_ONCE,
                down_shards=down_shards,
            )
        ]
        for provider in Provider
    }
    if not any(job.may_burst or job.has_burst for queue in queues.values() for job in queue):
        return NOTHING
    ids = [each.id for each in fleets]
    rows = Rows(
        now=now,
        workers=by_field(await observations.workers_of(tx, ids, stale_seconds=stale_seconds), "fleet_id"),
        leases=by_field(await observations.leases_of(tx, ids), "worker_id"),
        machines=by_field(await machines.present(tx, ids), "fleet_id"),
        newest={id_: await machines.newest(tx, id_, most=NEWEST_ORDERS) for id_ in ids},
        workflows=mapped,
        predictions=predictions,
        all_workers=await count_of_fleets(tx) if places.of_all is not None else 0,
        places=places,
    )
    found = {each.id: seen_fleet(each, rows) for each in fleets}
    there = {
        worker_id: machine
        for fleet in fleets
        for worker_id, machine in by_worker(
            seen_fleet(fleet, rows, providers=tuple(Provider)).machines, rows.machines.get(fleet.id, ())
        ).items()
    }
    spent = await bursts.spent(tx)
    return BurstInput(
        here=[
            *await _runners(tx, workers, there, Provider.SELF_HOSTED, stale_seconds=stale_seconds),
            *[runner for fleet in fleets for runner in _coming(fleet, found[fleet.id])],
        ],
        cloud=await _runners(tx, workers, there, Provider.CLOUD, stale_seconds=stale_seconds),
        queue=queues[Provider.SELF_HOSTED],
        cloud_queue=queues[Provider.CLOUD],
        money=replace(money, spent_micros=sum(spent.values()), workflow_spent_micros=spent),
    )


def _job(row: WaitingDispatch, may_burst: Set[int], predictions: Predictions, now: datetime) -> WaitingJob:
    return WaitingJob(
        id=row.id,
        workflow=row.workflow_id,
        workflow_hash=row.workflow_hash,
        seconds=predictions.seconds(row.workflow_id, row.effect_id),
        waited_seconds=max(0.0, (now - row.waited_from).total_seconds()),
        accepts_seconds=accepted_wait(row.max_wait_seconds, row.effect_max_wait_seconds, row.tenant_max_wait_seconds),
        may_burst=row.workflow_id in may_burst,
        has_burst=row.expected_cost_micros is not None,
        cloud_micros_per_second=row.cloud_micros_per_second,
    )


async def _runners(
    tx: Tx,
    workers: Sequence[ServingWorker],
    there: Mapping[str, ObservedMachine],
    provider: Provider,
    *,
    stale_seconds: float,
) -> list[BurstRunner]:
    serving = [each for each in workers if serves(each.providers, provider) and each.worker_id in there]
    ids = [each.worker_id for each in serving]
    refused = await blocks.standing(tx, ids)
    oversized: Mapping[str, frozenset[memory.OversizedWorkflow]] = {}
    if provider is Provider.SELF_HOSTED:
        refused = refused | await missing_requirements.pairs_of(tx, ids)
        oversized = await memory.oversized(tx, ids, stale_seconds=stale_seconds)
    return [
        BurstRunner(
            machine=there[worker.worker_id],
            workflows=worker.workflow_ids,
            refused_hashes=frozenset(hash_ for worker_id, hash_ in refused if worker_id == worker.worker_id),
            oversized=oversized.get(worker.worker_id, frozenset()),
        )
        for worker in serving
    ]


def _makes_machines(fleet: FleetRecord) -> bool:
    scaling = fleet.scaling_spec
    is_made = fleet.machine_spec.provider is not MachineProviderName.STATIC
    return is_made and not scaling.is_paused and not scaling.is_dry_run


def _coming(fleet: FleetRecord, found: ObservedFleet) -> list[BurstRunner]:
    """Booting machines, and one that could be ordered at any moment, so that no job goes to the cloud before it is
    ordered. It is left out if limits, refusals or the circuit breaker prevent its launch."""
    booting = [machine for machine in found.machines if machine.state is MachineState.BOOTING]
    space = headroom(found)
    if _makes_machines(fleet) and space.launches > 0:
        booting.append(
            ObservedMachine(
                id="next",
                state=MachineState.BOOTING,
                speed=space.instance_type.speed,
                slots=found.slots,
                boot_seconds_left=found.boot_seconds,
            )
        )
    return [BurstRunner(machine=each, workflows=found.workflows) for each in booting]
