"""Explain why jobs are waiting."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from datetime import datetime
from operator import attrgetter
from typing import Any, NamedTuple

from comfyrelay.domain.autoscaling.learning import NEWEST_BOOTS, boot_seconds, seconds_left
from comfyrelay.domain.autoscaling.observation import MachineState
from comfyrelay.domain.autoscaling.spec import MachineProviderName
from comfyrelay.domain.queue.dispatch import Dispatch
from comfyrelay.domain.queue.queue_pause import is_held, pause_text
from comfyrelay.domain.queue.slots import SlotLease
from comfyrelay.domain.queue.states import JOB_STATUS_OF, DispatchStatus, Provider
from comfyrelay.domain.queue.wait_reasons import (
    NO_STARTING_MACHINES,
    CandidateWorker,
    Reason,
    StartingMachines,
    Waiting,
    expected_start,
    explain_prefetched,
    explain_wait,
)
from comfyrelay.domain.records.workers import FleetRecord
from comfyrelay.errors import NotFound
from comfyrelay.services.context import ServiceContext
from comfyrelay.store.central import catalogue
from comfyrelay.store.central.autoscaling import bursts, decisions, machines, observations
from comfyrelay.store.central.queue import blocks, dispatches, memory, missing_requirements, pauses, positions
from comfyrelay.store.central.workers import slots, workers
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant import overview

# Dispatches with the same key wait for the same workers.
_group_key = attrgetter("workflow_id", "stage", "provider", "workflow_hash", "effect_id", "only_worker", "ran_out_on")


class WaitReasons:
    def __init__(self, context: ServiceContext, *, why_not_burst: Callable[[int], str | None]) -> None:
        """`why_not_burst` returns the reason why a job that waits longer than its user accepts was not moved to the
        cloud."""
        self._databases = context.databases
        self._offline_seconds = context.settings.worker_offline_seconds
        self._hooks = context.hooks
        self._why_not_burst = why_not_burst

    async def of_job(self, tenant_id: str, job_id: str) -> Waiting:
        found = await self.of_jobs(tenant_id, [job_id])
        if job_id not in found:
            raise NotFound(f"There is no job {job_id!r} in the queue.")
        return found[job_id]

    async def of_jobs(self, tenant_id: str, job_ids: Iterable[str]) -> dict[str, Waiting]:
        """Explain each job that is in the queue. Equal jobs share their queries."""
        explained: dict[str, Waiting] = {}
        async with self._databases.central.read() as tx:
            found = await dispatches.of_jobs(tx, [(tenant_id, job_id) for job_id in job_ids])
            paused = await _explain_queue_pause(tx, tenant_id)
            groups: dict[tuple[Any, ...], dict[str, Dispatch]] = {}
            for job_id, dispatch in found.items():
                prefetched = await _explain_if_prefetched(tx, dispatch)
                if paused is not None and is_held(dispatch.status, is_prefetched=prefetched is not None):
                    explained[job_id] = paused
                elif dispatch.status in {DispatchStatus.QUEUED, DispatchStatus.PAUSED}:
                    groups.setdefault(_group_key(dispatch), {})[job_id] = dispatch
                elif prefetched is not None:
                    explained[job_id] = prefetched
                else:
                    status = JOB_STATUS_OF[DispatchStatus(dispatch.status)]
                    explained[job_id] = Waiting(reason=Reason.NOT_WAITING, text=f"Not waiting: the job is {status}.")
            for group in groups.values():
                for job_id, waiting in (await self._explain_group(tx, group)).items():
                    text = await self._add_burst_text(tx, found[job_id], waiting.text)
                    explained[job_id] = replace(waiting, text=text)
        return explained

    async def batch_ends(self, tenant_id: str, batch_ids: Collection[str]) -> dict[str, float]:
        """Return the expected seconds until the last queued or running job of each batch ends, as far as known."""
        async with self._databases.central.read() as tx:
            held, now = await slots.held_of(tx, tenant_id)
            usual = await positions.mean_durations(tx, (lease.workflow_id for lease in held))
            fetched = {lease.batch_id or "": lease.job_id for lease in held if lease.is_prefetched}
            # Prefetched jobs run before queued jobs.
            last = {**fetched, **await positions.last_of_batches(tx, tenant_id, batch_ids)}
            last = {batch_id: job_id for batch_id, job_id in last.items() if batch_id in batch_ids}
            found = await dispatches.by_job(tx, tenant_id, last.values())
            seconds = {job_id: await _run_seconds(tx, dispatch) for job_id, dispatch in found.items()}
        left: dict[str, list[float | None]] = {}
        for lease in held:
            if lease.batch_id is not None and lease.batch_id in batch_ids and lease.batch_id not in last:
                left.setdefault(lease.batch_id, []).append(lease.seconds_left(usual.get(lease.workflow_id), now))
        ends = {batch_id: max(known) for batch_id, running in left.items() if (known := _all_known(running))}
        starts = await self.of_jobs(tenant_id, last.values()) if last else {}
        for batch_id, job_id in last.items():
            start, run = starts.get(job_id), seconds.get(job_id)
            if start is not None and start.starts_in_seconds is not None and run is not None:
                ends[batch_id] = start.starts_in_seconds + run
        return ends

    async def _add_burst_text(self, tx: Tx, dispatch: Dispatch, text: str) -> str:
        """Add the reason why the job was moved to the cloud or back, or why it was not moved."""
        if dispatch.status != DispatchStatus.QUEUED:
            return text
        if dispatch.has_burst:
            burst = await bursts.of_dispatch(tx, dispatch.id)
            why = None if burst is None else burst.back_reason or burst.reason
            return text if why is None else f"{why} {text}"
        why_not_burst = self._why_not_burst(dispatch.id)
        return text if why_not_burst is None else f"{text} {why_not_burst}"

    async def _explain_group(self, tx: Tx, group: Mapping[str, Dispatch]) -> dict[str, Waiting]:
        """Explain dispatches of the same workflow, stage and provider, by job."""
        dispatch = next(iter(group.values()))
        able = await workers.serving(
            tx,
            dispatch.workflow_id,
            stage=dispatch.stage,
            provider=Provider(dispatch.provider),
            offline_seconds=self._offline_seconds,
        )
        able = [worker for worker in able if dispatch.only_worker in (None, worker.worker_id)]
        failures = dispatch.memory_failures
        blocked = await blocks.of_hash(tx, dispatch.workflow_hash)
        is_self_hosted = dispatch.provider == Provider.SELF_HOSTED
        unmet = await missing_requirements.missing_for_hash(tx, dispatch.workflow_hash) if is_self_hosted else {}
        ids = [worker.worker_id for worker in able]
        # A job that is pinned to a worker is tried there even if its GPU is too small.
        checks_memory = is_self_hosted and dispatch.only_worker is None
        workflow = (dispatch.workflow_id, dispatch.workflow_hash)
        sizes = await memory.out_of_memory_bytes(tx, [dispatch.workflow_id]) if checks_memory else {}
        ran_out = sizes.get(workflow)
        small: set[str] = set()
        if ran_out is not None:
            oversized = await memory.oversized(tx, ids, offline_seconds=self._offline_seconds)
            small = {worker_id for worker_id, workflows in oversized.items() if workflow in workflows}
        shared = await workers.workflows_of(tx, ids)
        candidates = [
            CandidateWorker(
                slots=worker.max_concurrency,
                leases=worker.leases,
                blocked_until=blocked.get(worker.worker_id),
                unmet=unmet.get(worker.worker_id),
                has_too_little_memory=worker.worker_id in small or worker.worker_id in failures,
            )
            for worker in able
        ]
        usable = {
            worker.worker_id: candidate.slots
            for worker, candidate in zip(able, candidates, strict=True)
            if candidate.can_run
        }
        line = await _estimate_starts(tx, list(group.values()), shared, usable)
        now = await tx.now()
        starting = await _starting_machines(tx, dispatch, set(ids)) if is_self_hosted else NO_STARTING_MACHINES
        return {
            job_id: explain_wait(
                is_paused=waiting.status == DispatchStatus.PAUSED,
                available_at=waiting.available_at,
                shard_is_down=waiting.shard in self._databases.down(),
                comfyui_unreachable=self._hooks.comfyui_unreachable(waiting.stage),
                workers=candidates,
                ahead=line.ahead.get(waiting.id, 0),
                fetched=line.fetched,
                expected=line.expected.get(waiting.id),
                now=now,
                machines=starting,
                ran_out_bytes=ran_out,
                failed_sizes=list(failures.values()),
                is_worker_starting=self._hooks.is_worker_starting(waiting.stage),
            )
            for job_id, waiting in group.items()
        }


async def _explain_queue_pause(tx: Tx, tenant_id: str) -> Waiting | None:
    """Explain that the tenant's queue is paused. Returns `None` if it is not paused."""
    if not await pauses.paused_at(tx, [tenant_id]):
        return None
    leased = (await overview.leased(tx, [tenant_id]))[tenant_id]
    held = await pauses.count_queued(tx, tenant_id) + sum(item.is_prefetched for item in leased)
    return Waiting(reason=Reason.QUEUE_PAUSED, text=pause_text(held))


def _all_known(seconds: Sequence[float | None]) -> list[float]:
    """Return the values; empty if a value is missing."""
    known = [value for value in seconds if value is not None]
    return known if len(known) == len(seconds) else []


async def _run_seconds(tx: Tx, dispatch: Dispatch, shared: Sequence[int] = ()) -> float | None:
    """Return the expected run time of a dispatch: the mean of its workflow or effect, or else of the `shared`
    workflows."""
    mean = await positions.mean_duration(tx, [dispatch.workflow_id])
    if mean is None and dispatch.effect_id is not None:
        effect = await catalogue.effect(tx, id_=dispatch.effect_id)
        mean = effect.last_processing_time_seconds if effect else None
    return await positions.mean_duration(tx, shared) if mean is None and shared else mean


async def _explain_if_prefetched(tx: Tx, dispatch: Dispatch) -> Waiting | None:
    """Explain a prefetched dispatch that its worker has not started. Returns `None` for any other dispatch."""
    if not dispatch.is_leased or not dispatch.is_prefetch or dispatch.worker_id is None:
        return None
    held, now = await slots.held_by(tx, [dispatch.worker_id])
    prefetched = [lease for lease in held if lease.is_prefetched]
    job_ids = [lease.job_id for lease in prefetched]
    if dispatch.tenant_job_id not in job_ids:
        return None
    usual = await positions.mean_durations(tx, (lease.workflow_id for lease in held))
    before = prefetched[: job_ids.index(dispatch.tenant_job_id)]
    return explain_prefetched(
        running_seconds_left=[
            lease.seconds_left(usual.get(lease.workflow_id), now) for lease in held if not lease.is_prefetched
        ],
        before=[usual.get(lease.workflow_id) for lease in before],
    )


class _Line(NamedTuple):
    """The number of dispatches ahead of each dispatch, and the expected seconds until it starts, by id."""

    ahead: Mapping[int, int]
    expected: Mapping[int, float | None]
    # The number of dispatches that the workers have prefetched. They are ahead of all others.
    fetched: int


async def _estimate_starts(
    tx: Tx, group: Sequence[Dispatch], shared: Sequence[int], usable: Mapping[str, int]
) -> _Line:
    """Estimate when dispatches of the same kind start on the `usable` workers, given with their slots."""
    first = group[0]
    kind = {"stage": first.stage, "provider": first.provider}
    own = await _run_seconds(tx, first, shared)
    load = await _load(tx, usable, **kind, shared=shared, own=own or 0.0)
    usual = load.usual
    if len(group) == 1:
        ahead = {first.id: await positions.ahead_of(tx, first, shared, usual=usual)}
    else:
        ids = [dispatch.id for dispatch in group]
        ahead = await positions.ahead_of_each(tx, ids, **kind, workflow_ids=shared, usual=usual)
    return _Line(
        ahead={id_: found.jobs for id_, found in ahead.items()},
        expected={id_: None if own is None else load.start_behind(found) for id_, found in ahead.items()},
        fetched=len(load.fetched),
    )


class _Load(NamedTuple):
    """The load of workers: the seconds until each slot is free, and the expected seconds of each prefetched
    dispatch."""

    free_in: Sequence[float]
    fetched: Sequence[float]
    # The expected seconds by workflow of all dispatches that the workers run or could run.
    usual: Mapping[int, float]

    def start_behind(self, ahead: positions.Ahead) -> float | None:
        jobs, seconds = ahead.jobs + len(self.fetched), ahead.seconds + sum(self.fetched)
        return expected_start(self.free_in, ahead=jobs, ahead_seconds=seconds)


async def _load(
    tx: Tx, usable: Mapping[str, int], *, stage: str, provider: str, shared: Sequence[int], own: float
) -> _Load:
    """Read the load of workers, given with their slots. A workflow that has never run takes `own` seconds."""
    held, now = await slots.held_by(tx, list(usable))
    queued = await positions.waiting_workflows(tx, stage=stage, provider=provider, workflow_ids=shared)
    present = {*queued, *(lease.workflow_id for lease in held)}
    known = await positions.mean_durations(tx, present)
    usual = {id_: known.get(id_, own) for id_ in present}
    return _Load(
        free_in=_slot_seconds(held, usable, usual, now),
        fetched=[usual[lease.workflow_id] for lease in held if lease.is_prefetched],
        usual=usual,
    )


async def start_of_new(
    tx: Tx, usable: Mapping[str, int], *, stage: str, provider: str, shared: Sequence[int], priority: int, own: float
) -> float | None:
    """Return the expected seconds until a new job with this priority starts on these workers."""
    load = await _load(tx, usable, stage=stage, provider=provider, shared=shared, own=own)
    ahead = await positions.ahead_of_new(
        tx, stage=stage, provider=provider, workflow_ids=shared, priority=priority, usual=load.usual
    )
    return load.start_behind(ahead)


def _slot_seconds(
    held: Sequence[SlotLease], usable: Mapping[str, int], usual: Mapping[int, float], now: datetime
) -> list[float]:
    """Return the expected seconds until each slot is free."""
    found: list[float] = []
    for worker_id, count in usable.items():
        running = [lease for lease in held if lease.worker_id == worker_id and not lease.is_prefetched]
        left = [lease.seconds_left(usual[lease.workflow_id], now) or 0.0 for lease in running]
        found += left + [0.0] * (count - len(left))
    return found


async def _starting_machines(tx: Tx, dispatch: Dispatch, known: Set[str]) -> StartingMachines:
    """Find machines that are starting for the workflow, or the reason why none is launched. `known` workers have
    started."""
    fleets = await observations.fleets_with(tx, dispatch.workflow_id, stage=dispatch.stage)
    fleets = [fleet for fleet in fleets if fleet.is_scaled]
    if not fleets:
        return NO_STARTING_MACHINES
    now = await tx.now()
    left: list[float] = []
    for fleet in fleets:
        newest = await machines.newest(tx, fleet.id, limit=NEWEST_BOOTS)
        boot = boot_seconds(newest, fleet.machine_spec)
        for machine in await machines.present(tx, [fleet.id]):
            if machine.registered_at is None and machine.ending_at is None:
                left.append(seconds_left(boot, (now - machine.ordered_at).total_seconds()))
        if fleet.machine_spec.provider == MachineProviderName.KUBERNETES:
            left += await _starting_pods(tx, fleet, known, now)
    if left:
        return StartingMachines(boot_seconds_left=left)
    # A fleet without a limit may still launch a machine.
    limits = [limit for fleet in fleets if (limit := await _limit(tx, fleet)) is not None]
    return StartingMachines(limit=limits[0]) if len(limits) == len(fleets) else NO_STARTING_MACHINES


async def _starting_pods(tx: Tx, fleet: FleetRecord, known: Set[str], now: datetime) -> list[float]:
    """Return the seconds until each starting pod of a cluster is ready.

    Only the autoscaler sees the pods. Its last decision names the pods that were starting and the pods that it
    requested.
    """
    last = await decisions.latest(tx, fleet.id)
    if last is None or fleet.scaling_spec.is_paused or fleet.scaling_spec.is_dry_run:
        return []
    ago = (now - last.created_at).total_seconds()
    seconds = [
        machine["boot_seconds_left"]
        for machine in last.seen.get("machines", ())
        if machine["state"] == MachineState.BOOTING and machine["id"] not in known
    ]
    seconds += [last.seen["boot_seconds"]] * sum(launch["count"] for launch in last.launch)
    return [seconds_left(boot, ago) for boot in seconds]


async def _limit(tx: Tx, fleet: FleetRecord) -> str | None:
    """Return the limit that the last autoscaling decision reached, if any."""
    if fleet.scaling_spec.is_paused:
        return "the fleet is paused"
    last = await decisions.latest(tx, fleet.id)
    found = None if last is None else last.seen.get("limit")
    return str(found) if found else None
