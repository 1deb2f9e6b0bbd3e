"""How many more jobs a worker may ask for. Pure: it looks at what is held and at what could run."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil

from comfyrelay.protocol.progress import AFTER_RUN
from comfyrelay.worker.lease import Lease


@dataclass(frozen=True, kw_only=True, slots=True)
class Capacity:
    """What a poll says. The control plane counts every lease that we hold against `max_concurrency` + `prefetch`, also
    those whose output is only being uploaded, so those are added to `prefetch`."""

    providers: tuple[str, ...]
    max_concurrency: int
    prefetch: int
    current_load: int


def times_for(usual: Iterable[float | None], *, slots: int, short_seconds: float) -> int:
    """For how many servers jobs are fetched ahead and outputs uploaded behind. For each of them, while all that runs is
    known to be over soon: `usual` is how long each takes. Else for one: a job that is held here for long is nobody
    else's meanwhile."""
    known = list(usual)
    is_short = bool(known) and all(each is not None and each <= short_seconds for each in known)
    return max(slots, 1) if is_short else 1


def capacity_for(
    held: Iterable[Lease],
    *,
    slots: Mapping[str, int],
    max_concurrency: int,
    prefetch: int,
    upload_behind: int,
) -> Capacity | None:
    """The capacity for one more job, if there is any. `slots` are the runs that each provider takes at once."""
    held = list(held)
    behind = sum(each.phase in AFTER_RUN for each in held)
    ahead = [each for each in held if each.phase not in AFTER_RUN]
    at_once = min(max_concurrency, sum(slots.values()))
    is_full = len(ahead) >= at_once + prefetch or len(held) >= at_once + prefetch + upload_behind
    if at_once == 0 or is_full:
        return None
    providers = tuple(
        name
        for name, count in slots.items()
        if count and sum(lease.provider == name for lease in ahead) < min(count, max_concurrency) + prefetch
    )
    if not providers:
        return None
    return Capacity(providers=providers, max_concurrency=at_once, prefetch=prefetch + behind, current_load=len(ahead))


def most_on_gpu(max_concurrency: int | None, *, gpus: int) -> int | None:
    """How many ComfyUI on one GPU could ever have a job, where the jobs that run at once are limited."""
    return None if max_concurrency is None else max(ceil(max_concurrency / max(gpus, 1)), 1)
