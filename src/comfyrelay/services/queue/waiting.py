"""Why is it waiting?"""

from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from datetime import datetime

from comfyrelay.domain.lifecycle import Dispatch
from comfyrelay.domain.records.fleet import Fleet
from comfyrelay.domain.scaling.learning import NEWEST_BOOTS, boot_seconds, seconds_left
from comfyrelay.domain.scaling.snapshot import MachineState
from comfyrelay.domain.scaling.spec import MachineProviderName
from comfyrelay.domain.states import JOB_STATUS_OF, DispatchStatus, Provider
from comfyrelay.domain.waiting import NOTHING_COMING, Coming, Reason, Serving, Waiting, explain
from comfyrelay.errors import NotFound
from comfyrelay.services.databases import Databases
from comfyrelay.store.central import blocks, catalogue, dispatches, gaps, workers
from comfyrelay.store.central.scaling import bursts, decisions, machines, seen
from comfyrelay.store.database import Tx


class WhyWaiting:
    def __init__(
        self, databases: Databases, *, worker_stale_seconds: float, comfyui_away: Callable[[str], Sequence[str]]
    ) -> None:
        """`comfyui_away` says why no server of a stage can be used, where its only worker is in this process."""
        self._databases = databases
        self._worker_stale_seconds = worker_stale_seconds
        self._comfyui_away = comfyui_away
        # why a job that waits for longer than it accepts was not sent to the cloud
        self.why_here: Callable[[int], str | None] = lambda _dispatch_id: None

    async def of_job(self, tenant_id: str, job_id: str) -> Waiting:
        async with self._databases.central.read() as tx:
            found = await dispatches.of_jobs(tx, [(tenant_id, job_id)])
            if job_id not in found:
                raise NotFound(f"There is no job {job_id!r} in the queue.")
            waiting = await self._of(tx, found[job_id])
            return replace(waiting, text=await self._with_burst(tx, found[job_id], waiting.text))

    async def _with_burst(self, tx: Tx, dispatch: Dispatch, text: str) -> str:
        """Where it waits may be where nobody expects it: first comes why."""
        if dispatch.status != DispatchStatus.QUEUED:
            return text
        if dispatch.has_burst:
            burst = await bursts.of_dispatch(tx, dispatch.id)
            why = None if burst is None else burst.back_reason or burst.reason
            return text if why is None else f"{why} {text}"
        why_here = self.why_here(dispatch.id)
        return text if why_here is None else f"{text} {why_here}"

    async def _of(self, tx: Tx, dispatch: Dispatch) -> Waiting:
        if dispatch.status not in {DispatchStatus.QUEUED, DispatchStatus.PAUSED}:
            status = JOB_STATUS_OF[DispatchStatus(dispatch.status)]
            return Waiting(reason=Reason.NOT_WAITING, text=f"It is not waiting: it is {status}.")
        able = await workers.serving(
            tx,
            dispatch.workflow_id,
            stage=dispatch.stage,
            provider=Provider(dispatch.provider),
            stale_seconds=self._worker_stale_seconds,
        )
        blocked = await blocks.of_hash(tx, dispatch.workflow_hash)
        lacking = await gaps.of_hash(tx, dispatch.workflow_hash) if dispatch.provider == Provider.SELF_HOSTED else {}
        shared = await workers.workflows_of(tx, [each.worker_id for each in able])
        return explain(
            is_paused=dispatch.status == DispatchStatus.PAUSED,
            available_at=dispatch.available_at,
            pool_is_down=dispatch.db_pool in self._databases.down(),
            comfyui_away=self._comfyui_away(dispatch.stage),
            serving=[
                Serving(
                    slots=each.max_concurrency,
                    leases=each.leases,
                    blocked_until=blocked.get(each.worker_id),
                    lacking=lacking.get(each.worker_id),
                )
                for each in able
            ],
            ahead=await dispatches.ahead_of(tx, dispatch, shared),
            seconds_per_job=await self._seconds_per_job(tx, dispatch, shared),
            now=await dispatches.now(tx),
            coming=await _coming(tx, dispatch, {each.worker_id for each in able})
            if dispatch.provider == Provider.SELF_HOSTED
            else NOTHING_COMING,
        )

    async def _seconds_per_job(self, tx: Tx, dispatch: Dispatch, shared: list[int]) -> float | None:
        mean = await dispatches.mean_duration(tx, shared or [dispatch.workflow_id])
        if mean is None and dispatch.effect_id is not None:
            effect = await catalogue.effect(tx, id_=dispatch.effect_id)
            return effect.last_processing_time_seconds if effect else None
        return mean


async def _coming(tx: Tx, dispatch: Dispatch, known: Set[str]) -> Coming:
    """Machines that are starting for the workflow, or why none is. Workers that are `known` have started."""
    fleets = [each for each in await seen.fleets_with(tx, dispatch.workflow_id, stage=dispatch.stage) if each.is_scaled]
    if not fleets:
        return NOTHING_COMING
    now = await dispatches.now(tx)
    left: list[float] = []
    for fleet in fleets:
        newest = await machines.newest(tx, fleet.id, most=NEWEST_BOOTS)
        boot = boot_seconds(newest, fleet.machine_spec)
        for each in await machines.present(tx, [fleet.id]):
            if each.registered_at is None and each.ending_at is None:
                left.append(seconds_left(boot, (now - each.ordered_at).total_seconds()))
        if fleet.machine_spec.provider is MachineProviderName.KUBERNETES:
            left += await _pods_coming(tx, fleet, known, now)
    if left:
        return Coming(boot_seconds_left=left)
    # each of them has one, or somebody would launch
    limits = [limit for each in fleets if (limit := await _limit(tx, each)) is not None]
    return Coming(limit=limits[0]) if len(limits) == len(fleets) else NOTHING_COMING


async def _pods_coming(tx: Tx, fleet: Fleet, known: Set[str], now: datetime) -> list[float]:
    """Of a cluster only who tells it its number sees the pods: those that started when it last told another, and those
    that it asked for then."""
    last = await decisions.latest(tx, fleet.id)
    if last is None or fleet.scaling_spec.is_paused or fleet.scaling_spec.is_dry_run:
        return []
    ago = (now - last.created_at).total_seconds()
    seconds = [
        each["boot_seconds_left"]
        for each in last.seen.get("machines", ())
        if each["state"] == MachineState.BOOTING and each["id"] not in known
    ]
    asked_for = sum(each["count"] for each in last.launch)
    return [seconds_left(each, ago) for each in (*seconds, *asked_for * [last.seen["boot_seconds"]])]


async def _limit(tx: Tx, fleet: Fleet) -> str | None:
    """What the last decision said that it was kept from more by."""
    if fleet.scaling_spec.is_paused:
        return "the fleet is paused"
    last = await decisions.latest(tx, fleet.id)
    found = None if last is None else last.seen.get("limit")
    return str(found) if found else None
