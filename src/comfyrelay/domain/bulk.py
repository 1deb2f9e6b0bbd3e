"""Many jobs at once: how many, how a batch is made of lists, and what can be done with jobs together."""

from enum import StrEnum

# Of one batch, and of one call that names jobs.
MOST_ITEMS = 10_000
MOST_IDS = 1000


class BulkAction(StrEnum):
    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"
    RETRY = "retry"
    DELETE = "delete"
    PRIORITY = "priority"
    MOVE = "move"


class Mode(StrEnum):
    """Each input with each prompt, or input n with prompt n."""

    PRODUCT = "product"
    PAIRWISE = "pairwise"


class SeedMode(StrEnum):
    FIXED = "fixed"
    INCREMENT = "increment"
    RANDOM = "random"
