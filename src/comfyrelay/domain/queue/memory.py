"""What is done about a job that ran out of memory, and which cards are too small for one."""

from collections.abc import Iterable
from enum import StrEnum

GIB = 1024**3
# What ComfyUI calls a device whose memory is not that of a card: the first two have that of their machine, and of
# DirectML's it says 1 GiB, whatever they have.
NO_CARDS = ("cpu", "mps", "privateuseone")
# Cards of one size tell of slightly different memory: one counts as larger from so many percent more on.
LARGER_PERCENT = 5
# A job has a card to itself while other programs hold no more of it.
OTHERS_PERCENT = 10


class Relief(StrEnum):
    """Each is tried once, in this order; none of them costs the job an attempt."""

    # everything else on the card is unloaded, and nothing else runs there meanwhile
    ALONE = "alone"
    # on a card with more memory
    LARGER = "larger"
    # it is the job's failure
    NONE = "none"


def relief(*, ran_alone: bool, has_moved: bool, is_larger_there: bool) -> Relief:
    """`has_moved` is whether it was given to a larger card before."""
    if not ran_alone:
        return Relief.ALONE
    return Relief.LARGER if is_larger_there and not has_moved else Relief.NONE


def is_larger(card_bytes: int | None, than: int) -> bool:
    """Whether a card has more memory than one that was too small; of one that is not known nobody can say so."""
    return card_bytes is not None and card_bytes * 100 > than * (100 + LARGER_PERCENT)


def is_too_small(card_bytes: int | None, ran_out_bytes: int) -> bool:
    """Whether what did not fit into a card of `ran_out_bytes` is known not to fit into this one."""
    return card_bytes is not None and not is_larger(card_bytes, ran_out_bytes)


def has_it_alone(card_bytes: int, others_bytes: int) -> bool:
    """Whether a job that is alone there, as far as we can do something about it, says anything about the card."""
    return others_bytes * 100 <= card_bytes * OTHERS_PERCENT


def largest_card(sizes: Iterable[int | None]) -> int | None:
    """What a worker with several cards can offer a job."""
    return max((each for each in sizes if each), default=None)


def in_gib(size: int) -> str:
    """As people say it: cards have a little less than their name says."""
    gib = size / GIB
    return f"{round(gib)} GiB" if gib >= 3 else f"{gib:.1f} GiB"


def needs_more_than(card_bytes: int) -> str:
    return f"needs more memory than a card of {in_gib(card_bytes)}"


def waits_for_larger(card_bytes: int) -> str:
    return f"It waits for a card with more than {in_gib(card_bytes)}: it did not fit into one of that size."
