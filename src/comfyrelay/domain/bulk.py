"""Batches and bulk actions: limits, modes and results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from comfyrelay.errors import ComfyRelayError

# A batch has at most this many items, and a call this many job ids.
MAX_ITEMS = 10_000
MAX_IDS = 1000
# More refused jobs are counted but not listed.
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
    """What operators do to jobs of any customer."""

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
    """What happens to `{a|b}` and `__name__` in prompts: nothing, a random choice per job, or a job per combination."""

    OFF = "off"
    RANDOM = "random"
    ALL = "all"


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchAxis:
    """A list that a batch combines with its other lists, for display. `key` is that of a property, or a word for lists
    that are not properties: `input`, `tries` or `pairs`."""

    key: str
    name: str
    values: Sequence[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class RefusedJob:
    id: str
    detail: str


@dataclass(kw_only=True, slots=True)
class BulkResult:
    """`files` counts files deleted from a desk's output folder; `not_deleted` names the others, with the reason.

    `as_of` is set by a dry run with a filter. Sent with the action, it excludes jobs that match only since then.
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
