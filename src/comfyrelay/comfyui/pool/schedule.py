"""The rule that chooses a server for a job."""

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
        """Workflow hashes it has completed since it was last connected, newest first."""

    @property
    def cached(self) -> str | None:
        """The cache key of its last run."""

    @property
    def foreign_runs(self) -> int:
        """Number of other clients' runs on it."""

    @property
    def last_used(self) -> int:
        """Grows with each job that any server gets."""


C = TypeVar("C", bound=ServerCandidate)


def fits(bucket: Bucket, client_id: str, should_skip: ShouldSkip) -> bool:
    """Whether a job of this bucket may go to this server at all."""
    return client_id not in bucket.exclude_clients and not should_skip(client_id, bucket.workflow_hash)


def _coldness(workflow_hash: str, warm: Collection[str]) -> int:
    """The last workflow is loaded; earlier ones may be."""
    if workflow_hash not in warm:
        return 2
    return 0 if next(iter(warm)) == workflow_hash else 1


def choose(bucket: Bucket, candidates: Iterable[C], should_skip: ShouldSkip) -> C | None:
    """Choose a preferred server, then one with the cached result, then one with the models loaded, then the least
    busy, then the longest idle."""
    return min(
        (candidate for candidate in candidates if fits(bucket, candidate.id, should_skip)),
        key=lambda each: (
            each.id not in bucket.preferred_clients,
            bucket.same_as is None or bucket.same_as != each.cached,
            _coldness(bucket.workflow_hash, each.warm),
            each.foreign_runs,
            each.last_used,
        ),
        default=None,
    )
