"""Explain why jobs are waiting."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from datetime import datetime
from typing import Any

from comfyrelay.domain.autoscaling.learning import NEWEST_BOOTS, boot_seconds, seconds_left
from comfyrelay.domain.autoscaling.observation import MachineState
from comfyrelay.domain.autoscaling.spec import MachineProviderName
from comfyrelay.domain.queue.lifecycle import Dispatch
from comfyrelay.domain.queue.states import JOB_STATUS_OF, DispatchStatus, Provider
from comfyrelay.domain.queue.wait_reasons import (
    NO_STARTING_MACHINES,
    CandidateWorker,
    Reason,
    StartingMachines,
    Waiting,
    explain_prefetched,
    explain_wait,
)
from comfyrelay.domain.records.workers import FleetRecord
from comfyrelay.errors import NotFound
from comfyrelay.services.databases import Databases
from comfyrelay.store.central import catalogue
from comfyrelay.store.central.autoscaling import bursts, decisions, machines, observations
from comfyrelay.store.central.queue import blocks, dispatches, memory, missing_requirements
from comfyrelay.store.central.workers import slots, workers
from comfyrelay.store.database import Tx


class WaitReasons:
    def __init__(
        self,
        databases: Databases,
        *,
        worker_stale_seconds: float,
        comfyui_unreachable: Callable[[str], Sequence[str]],
        is_worker_starting: Callable[[str], bool],
        why_here: Callable[[int], str | None],
    ) -> None:
        """The callables describe the desk's own worker and bursting.

        `comfyui_unreachable` says why no ComfyUI of a stage is available, if its only worker is in this process, and
        `is_worker_starting` whether that worker has yet to register. `why_here` says why a job that waits longer than
        its user accepts was not moved to the cloud.
        """
        self._databases = databases
        self._worker_stale_seconds = worker_stale_seconds
        self._comfyui_unreachable = comfyui_unreachable
        self._is_worker_starting = is_worker_starting
        self._why_here = why_here

    async def of_job(self, tenant_id: str, job_id: str) -> Waiting:
        found = await self.of_jobs(tenant_id, [job_id])
        if job_id not in found:
            raise NotFound(f"There is no job {job_id!r} in the queue.")
        return found[job_id]

    async def of_jobs(self, tenant_id: str, job_ids: Iterable[str]) -> dict[str, Waiting]:
        """Explain by job; jobs that are not in the queue are left out. Equal jobs share their queries."""
        explained: dict[str, Waiting] = {}
        async with self._databases.central.read() as tx:
            found = await dispatches.of_jobs(tx, [(tenant_id, job_id_) for job_id_ in job_ids])
            groups: dict[tuple[Any, ...], dict[str, Dispatch]] = {}
            for job_id, each in found.items():
                if each.status in {DispatchStatus.QUEUED, DispatchStatus.PAUSED}:
                    key = (
                        each.workflow_id,
                        each.stage,
                        each.provider,
                        each.workflow_hash,
                        each.effect_id,
                        each.only_worker,
                    )
                    groups.setdefault(key, {})[job_id] = each
                elif (prefetched := await _explain_if_prefetched(tx, each)) is not None:
                    explained[job_id] = prefetched
                else:
                    status = JOB_STATUS_OF[DispatchStatus(each.status)]
                    explained[job_id] = Waiting(reason=Reason.NOT_WAITING, text=f"Not waiting: the job is {status}.")
            for group in groups.values():
                for job_id, waiting in (await self._explain_group(tx, group)).items():
                    text = await self._with_burst(tx, found[job_id], waiting.text)
                    explained[job_id] = replace(waiting, text=text)
        return explained

    async def _with_burst(self, tx: Tx, dispatch: Dispatch, text: str) -> str:
        """Add why the job was moved to the cloud or back, or why it was not."""
        if dispatch.status != DispatchStatus.QUEUED:
            return text
        if dispatch.has_burst:
            burst = await bursts.of_dispatch(tx, dispatch.id)
            why = None if burst is None else burst.back_reason or burst.reason
            return text if why is None else f"{why} {text}"
        why_here = self._why_here(dispatch.id)
        return text if why_here is None else f"{text} {why_here}"

    async def _explain_group(self, tx: Tx, group: Mapping[str, Dispatch]) -> dict[str, Waiting]:
        """Explain dispatches of the same workflow, stage and provider, by job."""
        dispatch = next(iter(group.values()))
        able = await workers.serving(
            tx,
            dispatch.workflow_id,
            stage=dispatch.stage,
            provider=Provider(dispatch.provider),
            stale_seconds=self._worker_stale_seconds,
        )
        able = [each for each in able if dispatch.only_worker in (None, each.worker_id)]
        blocked = await blocks.of_hash(tx, dispatch.workflow_hash)
        is_ours = dispatch.provider == Provider.SELF_HOSTED
        unmet = await missing_requirements.of_hash(tx, dispatch.workflow_hash) if is_ours else {}
        ids = [each.worker_id for each in able]
        # a job that is pinned to a worker is tried there even if its GPU is too small
        checks_memory = is_ours and dispatch.only_worker is None
        ran_out = await memory.ran_out_on(tx, dispatch.workflow_id, dispatch.workflow_hash) if checks_memory else None
        small: set[str] = set()
        if ran_out is not None:
            oversized = await memory.oversized(tx, ids, stale_seconds=self._worker_stale_seconds)
            workflow = (dispatch.workflow_id, dispatch.workflow_hash)
            small = {worker_id for worker_id, workflows in oversized.items() if workflow in workflows}
        shared = await workers.workflows_of(tx, ids)
        candidates = [
            CandidateWorker(
                slots=each.max_concurrency,
                leases=each.leases,
                blocked_until=blocked.get(each.worker_id),
                unmet=unmet.get(each.worker_id),
                is_too_small=each.worker_id in small,
            )
            for each in able
        ]
        ahead = await _ahead(tx, list(group.values()), shared)
        seconds_per_job = await self._seconds_per_job(tx, dispatch, shared)
        now = await dispatches.now(tx)
        starting = await _starting_machines(tx, dispatch, set(ids)) if is_ours else NO_STARTING_MACHINES
        return {
            job_id: explain_wait(
                is_paused=each.status == DispatchStatus.PAUSED,
                available_at=each.available_at,
                shard_is_down=each.shard in self._databases.down(),
                comfyui_unreachable=self._comfyui_unreachable(each.stage),
                workers=candidates,
                ahead=ahead.get(each.id, 0),
                seconds_per_job=seconds_per_job,
                now=now,
                machines=starting,
                ran_out_bytes=ran_out,
                is_worker_starting=self._is_worker_starting(each.stage),
            )
            for job_id, each in group.items()
        }

    async def _seconds_per_job(self, tx: Tx, dispatch: Dispatch, shared: list[int]) -> float | None:
        mean = await dispatches.mean_duration(tx, shared or [dispatch.workflow_id])
        if mean is None and dispatch.effect_id is not None:
            effect = await catalogue.effect(tx, id_=dispatch.effect_id)
            return effect.last_processing_time_seconds if effect else None
        return mean


async def _explain_if_prefetched(tx: Tx, dispatch: Dispatch) -> Waiting | None:
    """Explain a prefetched dispatch that its worker has not started; `None` for any other."""
    if not dispatch.is_leased or not dispatch.is_prefetch or dispatch.worker_id is None:
        return None
    held, now = await slots.held_by(tx, [dispatch.worker_id])
    prefetched = [each.job_id for each in held if each.is_prefetched]
    if dispatch.tenant_job_id not in prefetched:
        return None
    usual = {id_: await dispatches.mean_duration(tx, [id_]) for id_ in {job.workflow_id for job in held}}
    before = prefetched.index(dispatch.tenant_job_id)
    left = [each.seconds_left(usual[each.workflow_id], now) for each in held if not each.is_prefetched]
    return explain_prefetched(
        running_seconds_left=left,
        before=[usual[each.workflow_id] for each in held if each.job_id in prefetched[:before]],
    )


async def _ahead(tx: Tx, group: Sequence[Dispatch], shared: Sequence[int]) -> dict[int, int]:
    """By dispatch, how many dispatches are ahead of it."""
    if len(group) == 1:
        return {group[0].id: await dispatches.ahead_of(tx, group[0], shared)}
    ids, first = [each.id for each in group], group[0]
    return await dispatches.ahead_of_each(tx, ids, stage=first.stage, provider=first.provider, workflow_ids=shared)


async def _starting_machines(tx: Tx, dispatch: Dispatch, known: Set[str]) -> StartingMachines:
    """Machines that are starting for the workflow, or why none is launched. `known` workers have started."""
    fleets = [
        each
        for each in await observations.fleets_with(tx, dispatch.workflow_id, stage=dispatch.stage)
        if each.is_scaled
    ]
    if not fleets:
        return NO_STARTING_MACHINES
    now = await dispatches.now(tx)
    left: list[float] = []
    for fleet in fleets:
        newest = await machines.newest(tx, fleet.id, most=NEWEST_BOOTS)
        boot = boot_seconds(newest, fleet.machine_spec)
        for machine in await machines.present(tx, [fleet.id]):
            if machine.registered_at is None and machine.ending_at is None:
                left.append(seconds_left(boot, (now - machine.ordered_at).total_seconds()))
        if fleet.machine_spec.provider is MachineProviderName.KUBERNETES:
            left += await _starting_pods(tx, fleet, known, now)
    if left:
        return StartingMachines(boot_seconds_left=left)
    # a fleet without a limit may still launch one
    limits = [limit for each in fleets if (limit := await _limit(tx, each)) is not None]
    return StartingMachines(limit=limits[0]) if len(limits) == len(fleets) else NO_STARTING_MACHINES


async def _starting_pods(tx: Tx, fleet: FleetRecord, known: Set[str], now: datetime) -> list[float]:
    """Seconds until the starting pods of a cluster are ready.

    Only the autoscaler sees the pods, so they come from its last decision: pods that were starting, and pods it
    requested.
    """
    last = await decisions.latest(tx, fleet.id)
    if last is None or fleet.scaling_spec.is_paused or fleet.scaling_spec.is_dry_run:
        return []
    ago = (now - last.created_at).total_seconds()
    seconds = [
        each["boot_seconds_left"]
        for each in last.seen.get("machines", ())
        if each["state"] == MachineState.BOOTING and each["id"] not in known
    ]
    requested = sum(each["count"] for each in last.launch)
    return [seconds_left(second, ago) for second in (*seconds, *requested * [last.seen["boot_seconds"]])]


async def _limit(tx: Tx, fleet: FleetRecord) -> str | None:
    """The limit that the last autoscaling decision ran into, if any."""
    if fleet.scaling_spec.is_paused:
        return "the fleet is paused"
    last = await decisions.latest(tx, fleet.id)
    found = None if last is None else last.seen.get("limit")
    return str(found) if found else None
