"""The rule that says which server gets a job."""

from collections.abc import Callable, Collection, Iterable
from typing import Protocol, TypeVar

from comfyrelay.comfyui.pool.ticket import Bucket

ShouldSkip = Callable[[str, str], bool]


class ServerCandidate(Protocol):
    """A server that could take a job now."""

    @property
    def id(self) -> str: ...

    @property
    def warm(self) -> Collection[str]:
        """The workflow hashes that it has completed since it was last connected, the newest first."""

    @property
    def cached(self) -> str | None:
        """What it has run last, as jobs that are the same call it."""

    @property
    def foreign_runs(self) -> int:
        """How many runs of others it holds."""

    @property
    def last_used(self) -> int:
        """Grows with each job that any server gets."""


C = TypeVar("C", bound=ServerCandidate)


def fits(bucket: Bucket, client_id: str, should_skip: ShouldSkip) -> bool:
    """Whether a job of this bucket may go to this server at all."""
    return client_id not in bucket.exclude_clients and not should_skip(client_id, bucket.workflow_hash)


def _coldness(workflow_hash: str, warm: Collection[str]) -> int:
    """What ran last is loaded; what ran before that may be."""
    if workflow_hash not in warm:
        return 2
    return 0 if next(iter(warm)) == workflow_hash else 1


def choose(bucket: Bucket, candidates: Iterable[C], should_skip: ShouldSkip) -> C | None:
    """A preferred server, then one that has the very result, then one that has the models loaded, then the least
    occupied, then the longest idle."""
    return min(
        (each for each in candidates if fits(bucket, each.id, should_skip)),
        key=lambda each: (
            each.id not in bucket.preferred_clients,
            bucket.same_as is None or bucket.same_as != each.cached,
            _coldness(bucket.workflow_hash, each.warm),
            each.foreign_runs,
            each.last_used,
        ),
        default=None,
    )
