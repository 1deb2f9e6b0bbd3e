"""Decide what to do with a job that ran out of GPU memory, and compare GPU sizes."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum

from comfyrelay.error_text import MAX_LENGTH, user_sentence

GIB = 1024**3
# ComfyUI device types without their own GPU memory: the first two share the machine's memory, and for DirectML
# (privateuseone) ComfyUI always reports 1 GiB.
NO_GPUS = ("cpu", "mps", "privateuseone")
# GPUs of the same model report slightly different sizes, so a larger GPU must have at least this much more.
LARGER_PERCENT = 5
ADVICE = "Use fewer pixels or frames, a smaller batch or a smaller model, or run it on a GPU with more memory."
# A job counts as alone on a GPU while other programs use at most this share of its memory.
OTHERS_PERCENT = 10


class OutOfMemoryStep(StrEnum):
    """What to do after a job ran out of memory alone on a GPU. The steps cost no attempt."""

    # Rerun it on a GPU with more memory: this one is too small.
    LARGER = "larger"
    # Rerun it on another server, and block this one: it may be the only one that fails.
    ELSEWHERE = "elsewhere"
    # Fail the job.
    NONE = "none"


def judge_out_of_memory(
    gpu_bytes: int | None, *, untried: Sequence[int | None], failed: Sequence[int | None] = (), has_run_elsewhere: bool
) -> OutOfMemoryStep:
    """Decide who is at fault for a job that ran out of memory alone on a GPU: the server, the GPU's size or the job.

    `untried` and `failed` are the GPU sizes of the other servers that may run the job, and that it has not been tried
    on or ran out of memory on. `has_run_elsewhere`: another server with an equal or smaller GPU has completed the
    workflow.
    """
    if not untried:
        return OutOfMemoryStep.NONE
    has_larger = any(gpu_bytes is not None and is_larger(size, gpu_bytes) for size in untried)
    # Another GPU of this size shows whether the size or the server is the cause.
    has_equal = any(is_same_size(size, gpu_bytes) for size in untried)
    is_confirmed = any(size is not None and is_too_small(gpu_bytes, size) for size in failed)
    if has_larger and not has_run_elsewhere and (is_confirmed or not has_equal):
        return OutOfMemoryStep.LARGER
    return OutOfMemoryStep.ELSEWHERE


def is_same_size(gpu_bytes: int | None, other: int | None) -> bool:
    """Whether two GPUs may have the same size; true if one size is unknown."""
    if gpu_bytes is None or other is None:
        return True
    return not is_larger(gpu_bytes, other) and not is_larger(other, gpu_bytes)


def is_smaller(gpu_bytes: int | None, than: int | None) -> bool:
    """Whether a GPU has less memory than another; false if one size is unknown."""
    return gpu_bytes is not None and is_larger(than, gpu_bytes)


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


def ran_out_reason(gpu_bytes: int | None) -> str:
    """Return why a server is blocked for a workflow, and why its job moves to another server."""
    return "ran out of memory" if gpu_bytes is None else f"ran out of memory on a GPU of {in_gib(gpu_bytes)}"


def list_sizes(sizes: Sequence[int | None]) -> str:
    """List GPU sizes: `2 × 24 GiB, 8 GiB`."""
    counts = Counter("unknown size" if size is None else in_gib(size) for size in sizes)
    return ", ".join(f"{count} × {size}" if count > 1 else size for size, count in counts.items())


def another_worker_text(sizes: Sequence[int | None]) -> str:
    return f"Waiting for another worker: the job ran out of memory on a GPU of {list_sizes(sizes)}."


def every_gpu_failed(error: str, sizes: Sequence[int | None]) -> str:
    """Return the error of a job that ran out of memory on every GPU that can run it, with GPU sizes and advice."""
    sentence = user_sentence(error)
    if len(sizes) == 1 and sentence.endswith(ADVICE):
        return error
    which = f": {list_sizes(sizes)}" if any(sizes) else ""
    tail = f" It was tried on every GPU that can run it{which}. {ADVICE}"
    head = sentence.removesuffix(ADVICE).rstrip(" .")
    room = MAX_LENGTH - len(tail) - 1
    text = (f"{head}." if len(head) <= room else f"{head[:room].rstrip()}…") + tail
    return text if error == sentence else json.dumps({"error_message": text, "raw": error})


def larger_gpu_text(gpu_bytes: int) -> str:
    return f"Waiting for a GPU with more than {in_gib(gpu_bytes)}: the job ran out of memory on one of that size."
