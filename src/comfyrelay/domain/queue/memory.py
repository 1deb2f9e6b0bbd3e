"""Decide what to do with a job that ran out of GPU memory, and compare GPU sizes."""

from collections.abc import Iterable
from enum import StrEnum

GIB = 1024**3
# ComfyUI device types without their own GPU memory: the first two share the machine's memory, and for DirectML
# (privateuseone) ComfyUI always reports 1 GiB.
NO_GPUS = ("cpu", "mps", "privateuseone")
# GPUs of the same model report slightly different sizes, so a larger GPU must have at least this much more.
LARGER_PERCENT = 5
# A job counts as alone on a GPU while other programs use at most this share of its memory.
OTHERS_PERCENT = 10


class OutOfMemoryStep(StrEnum):
    """What to do after a job ran out of memory. `ALONE` and `LARGER` are tried once each and cost no attempt."""

    # Rerun it with everything else on the GPU unloaded.
    ALONE = "alone"
    # Rerun it on a GPU with more memory.
    LARGER = "larger"
    # Fail the job.
    NONE = "none"


def next_memory_step(*, ran_alone: bool, has_moved: bool, has_larger_gpu: bool) -> OutOfMemoryStep:
    """Return what to do next. `has_moved`: the job was already moved to a larger GPU."""
    if not ran_alone:
        return OutOfMemoryStep.ALONE
    return OutOfMemoryStep.LARGER if has_larger_gpu and not has_moved else OutOfMemoryStep.NONE


def is_larger(gpu_bytes: int | None, than: int) -> bool:
    """Whether a GPU has more memory than one that was too small; false if its size is unknown."""
    return gpu_bytes is not None and gpu_bytes * 100 > than * (100 + LARGER_PERCENT)


def is_too_small(gpu_bytes: int | None, ran_out_bytes: int) -> bool:
    """Whether a job that did not fit on a GPU of `ran_out_bytes` cannot fit on this one; false if unknown."""
    return gpu_bytes is not None and not is_larger(gpu_bytes, ran_out_bytes)


def is_alone_on_gpu(gpu_bytes: int, others_bytes: int) -> bool:
    """Whether other programs use so little memory that running out of it says something about the GPU's size."""
    return others_bytes * 100 <= gpu_bytes * OTHERS_PERCENT


def largest_gpu(sizes: Iterable[int | None]) -> int | None:
    return max((size for size in sizes if size), default=None)


def in_gib(size: int) -> str:
    """Format a size in GiB, rounded: GPUs report slightly less than their nominal size."""
    gib = size / GIB
    return f"{round(gib)} GiB" if gib >= 3 else f"{gib:.1f} GiB"


def larger_gpu_reason(gpu_bytes: int) -> str:
    return f"needs more memory than a GPU of {in_gib(gpu_bytes)}"


def larger_gpu_text(gpu_bytes: int) -> str:
    return f"Waiting for a GPU with more than {in_gib(gpu_bytes)}: the job ran out of memory on one of that size."
