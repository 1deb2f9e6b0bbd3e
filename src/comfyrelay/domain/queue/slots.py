"""Assign a worker's leased jobs to its slots. A slot runs one job at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from comfyrelay.domain.queue.progress import Progress, text
from comfyrelay.domain.queue.states import WorkerState

# Upper bound for workers that report an absurd number of slots.
MAX_SLOTS = 64
_DEVICE_FIELDS = ("server", "memory_total", "memory_used", "load", "on_gpu", "packing", "unavailable_reason")


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotLease:
    """A job that a worker has leased."""

    tenant_id: str
    job_id: str
    shard: str
    workflow_id: int
    worker_id: str
    is_prefetch: bool
    leased_at: datetime
    progress: Progress
    batch_id: str | None = None

    @property
    def is_prefetched(self) -> bool:
        return self.is_prefetch and not self.progress.has_begun

    def seconds_left(self, usual: float | None, now: datetime) -> float | None:
        """Return the expected remaining seconds; `usual` is the usual run time of such a job."""
        elapsed = (now - (self.progress.began_at or self.leased_at)).total_seconds()
        return None if usual is None else max(usual - max(elapsed, 0.0), 0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotState:
    worker_id: str
    name: str
    state: WorkerState
    server: str | None = None
    gpu: str | None = None
    memory_total: int | None = None
    memory_used: int | None = None
    load: float | None = None
    on_gpu: int | None = None
    packing: str | None = None
    unavailable_reason: str | None = None
    held: SlotLease | None = None


def why_unavailable(devices: Sequence[Mapping[str, Any]] | None) -> str | None:
    """Return why a worker cannot run jobs: the first reason if none of its servers can be used, otherwise `None`."""
    reasons = [text(device.get("unavailable_reason")) for device in devices or ()]
    return reasons[0] if reasons and all(reasons) else None


def slots_of(
    *,
    worker_id: str,
    name: str,
    state: WorkerState,
    max_concurrency: int,
    devices: Sequence[Mapping[str, Any]] | None,
    comfyui: Any,
    held: Sequence[SlotLease],
) -> list[SlotState]:
    """Return a worker's slots with their jobs.

    `devices` come with heartbeats. Older workers only report `comfyui` when they register.
    """
    if devices:
        details = [
            {"gpu": device.get("name"), **{field: device.get(field) for field in _DEVICE_FIELDS}}
            for device in devices
            for _ in range(min(device.get("slots", 1), MAX_SLOTS))
        ]
    else:
        details = _registered_slots(comfyui, max_concurrency)
    slots = [SlotState(worker_id=worker_id, name=name, state=state, **slot) for slot in details[:MAX_SLOTS]]
    running = [job for job in held if not job.is_prefetched]
    # Jobs that only store their outputs come last, because they no longer use the GPU.
    running.sort(key=lambda job: (job.progress.is_after_run, job.leased_at))
    # First assign the jobs that report their server, then the others.
    for knows_server in (True, False):
        for job in list(running):
            for number, slot in enumerate(slots):
                is_same = slot.server is not None and slot.server == job.progress.server
                if slot.held is None and (is_same if knows_server else job.progress.server is None):
                    slots[number] = replace(slot, held=job)
                    running.remove(job)
                    break
    return [replace(slot, state=_state(slot)) for slot in slots]


def gpus_of(devices: Sequence[Mapping[str, Any]] | None, comfyui: Any) -> list[dict[str, Any]]:
    """Return a worker's GPUs, from its heartbeats, or from its registration for older workers."""
    if devices:
        return [{field: device.get(field) for field in ("name", "slots", *_DEVICE_FIELDS)} for device in devices]
    registered = _registered_slots(comfyui, len(comfyui) if isinstance(comfyui, list) else 0)
    return [{"name": slot.get("gpu"), "memory_total": slot.get("memory_total")} for slot in registered if slot]


def _state(slot: SlotState) -> WorkerState:
    """Return the state of one slot.

    A slot with a job is busy, even if its worker counts as offline. A busy worker's other slots are idle.
    """
    if slot.state is WorkerState.REVOKED:
        return slot.state
    if slot.held is not None:
        return WorkerState.DRAINING if slot.state is WorkerState.DRAINING else WorkerState.BUSY
    return WorkerState.IDLE if slot.state is WorkerState.BUSY else slot.state


def _registered_slots(comfyui: Any, max_concurrency: int) -> list[dict[str, Any]]:
    servers = comfyui if isinstance(comfyui, list) else []
    gpus = [server["gpus"][0] for server in servers if isinstance(server, dict) and _has_gpu(server)]
    known = [{"gpu": text(gpu.get("name")), "memory_total": _integer(gpu.get("memory_total"))} for gpu in gpus]
    return [known[number] if number < len(known) else {} for number in range(min(max_concurrency, MAX_SLOTS))]


def _has_gpu(server: Mapping[str, Any]) -> bool:
    gpus = server.get("gpus")
    return isinstance(gpus, list) and bool(gpus) and isinstance(gpus[0], dict)


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
