"""Decide how many more jobs a worker may poll for."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from comfyrelay.protocol.progress import AFTER_RUN, Phase
from comfyrelay.worker.comfyui.servers import AHEAD_SECONDS, Servers
from comfyrelay.worker.estimate import TypicalDurations
from comfyrelay.worker.lease import Lease
from comfyrelay.worker.settings import WorkerSettings

# At most this many jobs are prefetched, and at most this many outputs are uploaded while other jobs run.
MAX_PREFETCHED = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class Capacity:
    """The capacity that is reported in a poll.

    The control plane counts every held lease against `max_concurrency` + `prefetch`, including leases whose output is
    still uploading, so these are added to `prefetch`.
    """

    providers: tuple[str, ...]
    max_concurrency: int
    prefetch: int
    current_load: int


def worker_capacity(
    leases: Sequence[Lease],
    ended: Lease | None,
    servers: Servers,
    settings: WorkerSettings,
    durations: TypicalDurations,
) -> Capacity | None:
    """Return the capacity of a worker if it can take one more job. The lease that has `ended` is not counted."""
    held = [lease for lease in leases if lease is not ended]
    slots: dict[str, int] = {name: servers.slots(name) for name in settings.providers}
    running = [lease.workflow_hash for lease in held if lease.phase is Phase.RUNNING]
    factor = background_slots(
        map(durations.run_seconds, running), slots=sum(slots.values()), short_seconds=AHEAD_SECONDS
    )
    return capacity_for(
        held,
        slots=slots,
        max_concurrency=servers.at_once,
        prefetch=min(settings.prefetch * factor, MAX_PREFETCHED),
        upload_behind=min(settings.upload_behind * factor, MAX_PREFETCHED),
    )


def background_slots(usual: Iterable[float | None], *, slots: int, short_seconds: float) -> int:
    """Return the number of servers for which to prefetch jobs and upload outputs in the background.

    `usual` has the usual seconds of the running jobs, if known. If all jobs are short, the result is the number of
    servers; otherwise it is 1, because a job that is prefetched early is not available to other workers.
    """
    known = list(usual)
    is_short = bool(known) and all(seconds is not None and seconds <= short_seconds for seconds in known)
    return max(slots, 1) if is_short else 1


def capacity_for(
    held: Iterable[Lease],
    *,
    slots: Mapping[str, int],
    max_concurrency: int,
    prefetch: int,
    upload_behind: int,
) -> Capacity | None:
    """Return the capacity if one more job can be taken. `slots` is the number of concurrent runs per provider."""
    held = list(held)
    active = [lease for lease in held if lease.phase not in AFTER_RUN]
    uploading = len(held) - len(active)
    at_once = min(max_concurrency, sum(slots.values()))
    is_full = len(active) >= at_once + prefetch or len(held) >= at_once + prefetch + upload_behind
    if at_once == 0 or is_full:
        return None
    load = Counter(lease.provider for lease in active)
    providers = tuple(
        name for name, count in slots.items() if count and load[name] < min(count, max_concurrency) + prefetch
    )
    if not providers:
        return None
    return Capacity(
        providers=providers, max_concurrency=at_once, prefetch=prefetch + uploading, current_load=len(active)
    )


def max_processes_per_gpu(max_concurrency: int | None, *, gpus: int) -> int | None:
    """Return how many ComfyUI processes on one GPU could have jobs under this limit on concurrency."""
    return None if max_concurrency is None else max(ceil(max_concurrency / max(gpus, 1)), 1)
