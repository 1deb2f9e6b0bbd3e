"""Batches and bulk actions: limits, modes and results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from comfyrelay.errors import ComfyRelayError

# Maximum number of items in a batch, and of job ids in a call.
MAX_ITEMS = 10_000
MAX_IDS = 1000
# Maximum number of refused jobs that a result lists.
MAX_REFUSED = 100


class BulkAction(StrEnum):
    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"
    RETRY = "retry"
    DELETE = "delete"
    PRIORITY = "priority"
    MOVE = "move"


class DispatchAction(StrEnum):
    """Actions of operators on jobs of any customer."""

    CANCEL = "cancel"
    RETRY = "retry"
    RUN_FREE = "run_free"
    REFUND = "refund"


class Mode(StrEnum):
    """How a batch combines its lists: each value with each value, or value n of each list together."""

    PRODUCT = "product"
    PAIRWISE = "pairwise"


class SeedMode(StrEnum):
    FIXED = "fixed"
    INCREMENT = "increment"
    RANDOM = "random"


class WildcardMode(StrEnum):
    """How prompts with `{a|b}` and `__name__` are expanded: not at all, at random, or into one job per result."""

    OFF = "off"
    RANDOM = "random"
    ALL = "all"


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchAxis:
    """A list that a batch combines with its other lists, for display. `key` is the key of a property, or `input`,
    `tries` or `pairs` for lists that are not properties."""

    key: str
    name: str
    values: Sequence[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class RefusedJob:
    id: str
    detail: str


@dataclass(kw_only=True, slots=True)
class BulkResult:
    """`files` is the number of files deleted from a desk's output folder; `not_deleted` has the others, with reasons.

    A dry run with a filter sets `as_of`. If it is sent with the action, jobs that began to match later are excluded.
    """

    matched: int = 0
    changed: int = 0
    files: int = 0
    not_deleted: list[str] = field(default_factory=list)
    refused: list[RefusedJob] = field(default_factory=list)
    as_of: str | None = None

    def refuse(self, errors: Mapping[str, ComfyRelayError]) -> None:
        more = [RefusedJob(id=job_id, detail=error.detail) for job_id, error in errors.items()]
        self.refused += more[: MAX_REFUSED - len(self.refused)]
