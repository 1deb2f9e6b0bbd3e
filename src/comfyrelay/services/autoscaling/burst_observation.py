"""Read the input of burst decisions: both queues, the workers, and the spending in the current hour."""

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
from comfyrelay.services.autoscaling.fleet_observation import WorkerLimits, by_worker, observe_fleet, read_rows
from comfyrelay.store.central.autoscaling import bursts, observations
from comfyrelay.store.central.autoscaling.bursts import ServingWorker, WaitingDispatch
from comfyrelay.store.central.queue import blocks, memory, missing_requirements
from comfyrelay.store.central.workers.workers import serves
from comfyrelay.store.database import Tx

# Maximum number of jobs per workflow in one round.
MAX_QUEUED = 2000
NOTHING_TO_DECIDE = BurstInput(self_hosted=(), cloud=(), queue=())


async def read_burst_input(
    tx: Tx,
    stage: Stage,
    *,
    may_burst: Set[int],
    in_cloud: Set[int],
    budget: BurstBudget,
    down_shards: Collection[str],
    offline_seconds: float,
    worker_limits: WorkerLimits,
) -> BurstInput:
    """Read the input of a stage. `may_burst` are the workflows whose jobs may move to the cloud, and `in_cloud` the
    workflows with jobs there. The spending in the current hour is added to `budget`."""
    workers = await bursts.serving(tx, stage=stage, offline_seconds=offline_seconds)
    fleets = [fleet for fleet in await observations.all_fleets(tx) if fleet.stage == stage]
    mapped = await observations.workflows_of(tx, [fleet.id for fleet in fleets])
    wanted = may_burst | in_cloud
    # Other workflows of the same workers compete for the slots of these workers.
    sharing = [served for served in (*(worker.workflow_ids for worker in workers), *mapped.values()) if wanted & served]
    related = set(wanted).union(*sharing)
    now, predictions = await tx.now(), await Predictions.read(tx, related)
    queues = {
        provider: [
            _job(row, may_burst, predictions, now)
            for row in await bursts.queue(
                tx, stage=stage, provider=provider, workflow_ids=related, limit=MAX_QUEUED, down_shards=down_shards
            )
        ]
        for provider in Provider
    }
    if not any(job.may_burst or job.has_burst for queue in queues.values() for job in queue):
        return NOTHING_TO_DECIDE
    rows = await read_rows(
        tx,
        fleets,
        workflows=mapped,
        predictions=predictions,
        offline_seconds=offline_seconds,
        worker_limits=worker_limits,
    )
    machines = {
        worker_id: machine
        for fleet in fleets
        for worker_id, machine in by_worker(
            observe_fleet(fleet, rows, providers=tuple(Provider)).machines, rows.machines.get(fleet.id, ())
        ).items()
    }
    spent = await bursts.spent(tx)
    return BurstInput(
        self_hosted=[
            *await _runners(tx, workers, machines, Provider.SELF_HOSTED, offline_seconds=offline_seconds),
            *[runner for fleet in fleets for runner in _booting(fleet, observe_fleet(fleet, rows))],
        ],
        cloud=await _runners(tx, workers, machines, Provider.CLOUD, offline_seconds=offline_seconds),
        queue=queues[Provider.SELF_HOSTED],
        cloud_queue=queues[Provider.CLOUD],
        budget=replace(budget, spent_micros=sum(spent.values()), workflow_spent_micros=spent),
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
    machines: Mapping[str, ObservedMachine],
    provider: Provider,
    *,
    offline_seconds: float,
) -> list[BurstRunner]:
    serving = [worker for worker in workers if serves(worker.providers, provider) and worker.worker_id in machines]
    ids = [worker.worker_id for worker in serving]
    refused = await blocks.blocked_pairs(tx, ids)
    oversized: Mapping[str, frozenset[memory.OversizedWorkflow]] = {}
    if provider is Provider.SELF_HOSTED:
        refused = refused | await missing_requirements.pairs_of(tx, ids)
        oversized = await memory.oversized(tx, ids, offline_seconds=offline_seconds)
    return [
        BurstRunner(
            machine=machines[worker.worker_id],
            workflows=worker.workflow_ids,
            refused_hashes=frozenset(hash_ for worker_id, hash_ in refused if worker_id == worker.worker_id),
            oversized=oversized.get(worker.worker_id, frozenset()),
        )
        for worker in serving
    ]


def _booting(fleet: FleetRecord, observed: ObservedFleet) -> list[BurstRunner]:
    """Return the booting machines, and one machine that could be ordered at any moment.

    Without the latter, a job would move to the cloud before the machine is ordered. That machine is omitted if limits,
    refusals or the circuit breaker prevent its launch.
    """
    booting = [machine for machine in observed.machines if machine.state is MachineState.BOOTING]
    space = headroom(observed)
    is_static = fleet.machine_spec.provider == MachineProviderName.STATIC
    is_launching = not is_static and not fleet.scaling_spec.is_paused and not fleet.scaling_spec.is_dry_run
    if is_launching and space.launches > 0:
        booting.append(
            ObservedMachine(
                id="next",
                state=MachineState.BOOTING,
                speed=space.instance_type.speed,
                slots=observed.slots,
                boot_seconds_left=observed.boot_seconds,
            )
        )
    return [BurstRunner(machine=machine, workflows=observed.workflows) for machine in booting]
