"""What is done about a job that ran out of memory, and which GPUs are too small for one."""

from collections.abc import Iterable
from enum import StrEnum

GIB = 1024**3
# What ComfyUI calls a device whose memory is not that of a GPU: the first two have that of their machine, and of
# DirectML's it says 1 GiB, whatever they have.
NO_GPUS = ("cpu", "mps", "privateuseone")
# GPUs of one size tell of slightly different memory: one counts as larger from so many percent more on.
LARGER_PERCENT = 5
# A job has a GPU to itself while other programs hold no more of it.
OTHERS_PERCENT = 10


class Relief(StrEnum):
    """Each is tried once, in this order; none of them costs the job an attempt."""

    # everything else on the GPU is unloaded, and nothing else runs there meanwhile
    ALONE = "alone"
    # on a GPU with more memory
    LARGER = "larger"
    # it is the job's failure
    NONE = "none"


def relief(*, ran_alone: bool, has_moved: bool, is_larger_there: bool) -> Relief:
    """`has_moved` is whether it was given to a larger GPU before."""
    if not ran_alone:
        return Relief.ALONE
    return Relief.LARGER if is_larger_there and not has_moved else Relief.NONE


def is_larger(gpu_bytes: int | None, than: int) -> bool:
    """Whether a GPU has more memory than one that was too small; of one that is not known nobody can say so."""
    return gpu_bytes is not None and gpu_bytes * 100 > than * (100 + LARGER_PERCENT)


def is_too_small(gpu_bytes: int | None, ran_out_bytes: int) -> bool:
    """Whether what did not fit into a GPU of `ran_out_bytes` is known not to fit into this one."""
    return gpu_bytes is not None and not is_larger(gpu_bytes, ran_out_bytes)


def has_it_alone(gpu_bytes: int, others_bytes: int) -> bool:
    """Whether a job that is alone there, as far as we can do something about it, says anything about the GPU."""
    return others_bytes * 100 <= gpu_bytes * OTHERS_PERCENT


def largest_gpu(sizes: Iterable[int | None]) -> int | None:
    """What a worker with several GPUs can offer a job."""
    return max((each for each in sizes if each), default=None)


def in_gib(size: int) -> str:
    """As people say it: GPUs have a little less than their name says."""
    gib = size / GIB
    return f"{round(gib)} GiB" if gib >= 3 else f"{gib:.1f} GiB"


def needs_more_than(gpu_bytes: int) -> str:
    return f"needs more memory than a GPU of {in_gib(gpu_bytes)}"


def waits_for_larger(gpu_bytes: int) -> str:
    return f"It waits for a GPU with more than {in_gib(gpu_bytes)}: it did not fit into one of that size."
