"""Whether a GPU and its machine have room for more ComfyUI processes."""

from comfyrelay.domain.packing.state import GpuObservation, Packing, PackingLimits
from comfyrelay.domain.queue.memory import GIB


def copies_that_fit(memory_bytes: int, copy_bytes: int, limits: PackingLimits | None = None) -> int:
    """Return how many copies fit in the GPU's memory; at least one, because the job has to run somewhere."""
    usable = memory_bytes * (1 - (limits or PackingLimits()).reserve)
    return max(int(usable // max(copy_bytes, 1)), 1)


def copies_in_machine(free_bytes: int, copy_bytes: int, limits: PackingLimits | None = None) -> int:
    """Return how many more processes fit in the machine's memory, through which models are loaded."""
    return max((free_bytes - (limits or PackingLimits()).machine_reserve_bytes) // max(copy_bytes, 1), 0)


def shortage_reason(packing: Packing, gpu: GpuObservation, limits: PackingLimits) -> str | None:
    """Return the reason for removing a process for lack of memory, or `None`."""
    count = len(gpu.processes)
    if any(packing.max_fitting.get(workflow, count) < count for workflow in gpu.workflows | gpu.out_of_memory):
        return f"A job ran out of memory next to others: {processes(count - 1)} instead of {count}."
    if gpu.machine_free_bytes is not None and gpu.machine_free_bytes < limits.machine_min_bytes:
        return f"The machine is low on memory: {gib(gpu.machine_free_bytes)} free."
    if gpu.memory_bytes is None or gpu.copy_bytes is None:
        return None
    fitting = copies_that_fit(gpu.memory_bytes, gpu.copy_bytes, limits)
    if count <= fitting:
        return None
    need = f"each process takes {gib(gpu.copy_bytes)} of the GPU's {gib(gpu.memory_bytes)}"
    return f"GPU memory is low: {need}, so {fitting} fit{'s' if fitting == 1 else ''}."


def triable(packing: Packing, gpu: GpuObservation) -> list[str]:
    return [workflow for workflow in gpu.workflows if workflow not in packing.retry_at]


def max_useful(packing: Packing, workflow: str, limits: PackingLimits) -> int:
    return packing.max_useful.get(workflow, limits.max_processes)


def most_useful(packing: Packing, gpu: GpuObservation, limits: PackingLimits) -> int:
    """Return the largest number of processes that may pay off for a current workflow."""
    return max((max_useful(packing, workflow, limits) for workflow in gpu.workflows), default=limits.max_processes)


def may_pay_off(packing: Packing, gpu: GpuObservation, limits: PackingLimits, count: int) -> bool:
    """Whether this many processes may still pay off."""
    return any(max_useful(packing, workflow, limits) >= count for workflow in triable(packing, gpu))


def reason_against(packing: Packing, gpu: GpuObservation, limits: PackingLimits) -> str | None:
    """Return the reason for not adding a process, or `None` if one may be added."""
    total = gpu.total
    why = None
    failed_at = packing.failed_at
    if gpu.restarting:
        why = "one is restarting"
    elif total >= limits.max_processes:
        why = "this is the limit for one GPU"
    elif not gpu.waiting or not gpu.workflows:
        why = "no jobs are waiting"
    elif failed_at is not None and gpu.now - failed_at < limits.retry_seconds:
        why = f"another one did not start and is retried after {limits.retry_seconds:.0f} s"
    elif any(packing.max_fitting.get(workflow, limits.max_processes) <= total for workflow in gpu.workflows):
        why = "a job ran out of memory next to others"
    elif _max_in_shortage(packing, gpu, limits) <= total:
        why = "memory was low for the current workflows"
    elif all(max_useful(packing, workflow, limits) <= total for workflow in gpu.workflows):
        why = "more did not pay off for the current workflows"
    elif not may_pay_off(packing, gpu, limits, total + 1):
        why = "more did not pay off recently"
    elif (problem := _memory_problem(gpu, limits) or _machine_problem(gpu, limits)) is not None:
        why = problem
    elif gpu.spare_cores is not None and gpu.spare_cores < 1:
        why = "no CPU core is free"
    elif gpu.load is not None and gpu.load >= limits.busy_load:
        why = f"the GPU is busy {gpu.load:.0%} of the time"
    return None if why is None else sentence(len(gpu.processes), why)


def largest_allowed(packing: Packing, gpu: GpuObservation, limits: PackingLimits) -> int:
    """Return the largest number of processes that memory, cores and earlier results allow; at least the current."""
    total = gpu.total
    if reason_against(packing, gpu, limits) is not None or gpu.memory_bytes is None or gpu.copy_bytes is None:
        return total
    bounds = [
        limits.max_processes,
        max(max_useful(packing, workflow, limits) for workflow in triable(packing, gpu)),
        min(packing.max_fitting.get(workflow, limits.max_processes) for workflow in gpu.workflows),
        _max_in_shortage(packing, gpu, limits),
        copies_that_fit(gpu.memory_bytes, gpu.copy_bytes, limits),
        # Starting processes have not allocated their memory yet.
        len(gpu.processes) + len(gpu.restarting) + (gpu.free_bytes or 0) // max(gpu.copy_bytes, 1),
    ]
    if gpu.machine_free_bytes is not None and gpu.machine_copy_bytes is not None:
        more = copies_in_machine(gpu.machine_free_bytes, gpu.machine_copy_bytes, limits)
        bounds.append(total - gpu.starting + more)
    if gpu.spare_cores is not None:
        bounds.append(total + int(gpu.spare_cores))
    return max(min(bounds), total)


def _max_in_shortage(packing: Packing, gpu: GpuObservation, limits: PackingLimits) -> int:
    """Return how many processes may run while the workflows of a recent memory shortage run."""
    shortage = packing.shortage
    if shortage is None or gpu.now >= shortage.until or not gpu.workflows >= shortage.workflows:
        return limits.max_processes
    return shortage.count


def _memory_problem(gpu: GpuObservation, limits: PackingLimits) -> str | None:
    """Return the reason why another process does not fit in the GPU's memory, or `None`."""
    if gpu.memory_bytes is None or gpu.free_bytes is None:
        return "the GPU's memory is unknown"
    if gpu.copy_bytes is None:
        return "the memory use of its jobs is not known yet"
    if gpu.total + 1 > copies_that_fit(gpu.memory_bytes, gpu.copy_bytes, limits):
        return f"the GPU has {gib(gpu.memory_bytes)}, and each process takes {gib(gpu.copy_bytes)}"
    # Starting processes have not allocated their memory yet.
    if gpu.free_bytes < (gpu.starting + 1) * gpu.copy_bytes:
        return f"another one takes {gib(gpu.copy_bytes)}, but {gib(gpu.free_bytes)} are free"
    return None


def _machine_problem(gpu: GpuObservation, limits: PackingLimits) -> str | None:
    """Return the reason why another process does not fit in the machine's memory; `None` if it fits or is unknown."""
    if gpu.machine_free_bytes is None or gpu.machine_copy_bytes is None:
        return None
    if copies_in_machine(gpu.machine_free_bytes, gpu.machine_copy_bytes, limits) > gpu.starting:
        return None
    free, copy = gib(gpu.machine_free_bytes), gib(gpu.machine_copy_bytes)
    reserve = gib(limits.machine_reserve_bytes)
    return f"another one takes {copy} of machine memory, with {free} free and {reserve} in reserve"


def sentence(count: int, why: str) -> str:
    return f"{processes(count)}: {why}."


def processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
