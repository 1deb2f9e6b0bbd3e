"""Statistics of a pool."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from comfyrelay.comfyui.pool.events import ClientState
from comfyrelay.comfyui.pool.failover import FailoverStrategy
from comfyrelay.comfyui.pool.member import Member
from comfyrelay.comfyui.pool.queue import PoolJobStatus
from comfyrelay.domain.queue.blocks import Block


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientStats:
    """`completed` and `failed` count attempts.

    `blocks` are its failures since its last success, by workflow hash: their count, and until when it does not get the
    workflow.
    """

    state: ClientState
    url: str
    gpu: str | None
    running: int
    # Workflows of the active runs.
    running_hashes: tuple[str, ...]
    completed: int
    failed: int
    blocked_hashes: frozenset[str]
    blocks: Mapping[str, Block]
    # Newest first.
    warm_hashes: tuple[str, ...]
    # The workflow that stays loaded there.
    pinned: str | None

    @classmethod
    def of(cls, member: Member, failover: FailoverStrategy) -> "ClientStats":
        return cls(
            state=member.state,
            url=member.server.url,
            gpu=member.gpu,
            running=member.running,
            running_hashes=tuple(bucket.workflow_hash for bucket in member.buckets),
            completed=member.completed,
            failed=member.failed,
            blocked_hashes=failover.blocked_hashes(member.id),
            blocks=dict(failover.blocks(member.id)),
            warm_hashes=tuple(member.warm),
            pinned=member.pinned,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolStats:
    """Jobs by status. Finished jobs are counted since the pool was opened, even if they are no longer stored."""

    queued: int
    running: int
    retrying: int
    completed: int
    failed: int
    canceled: int
    clients: Mapping[str, ClientStats]


class Tally:
    """Count jobs by status, so that they need not be walked."""

    def __init__(self) -> None:
        self._counts: Counter[PoolJobStatus] = Counter()

    def __getitem__(self, status: PoolJobStatus) -> int:
        return self._counts[status]

    def added(self, status: PoolJobStatus) -> None:
        self._counts[status] += 1

    def moved(self, before: PoolJobStatus, after: PoolJobStatus) -> None:
        self._counts[before] -= 1
        self._counts[after] += 1
