"""Statistics of a pool."""

from collections.abc import Mapping
from dataclasses import dataclass

from comfyrelay.comfyui.pool.events import ClientState
from comfyrelay.comfyui.pool.failover import FailoverStrategy
from comfyrelay.comfyui.pool.members import Member
from comfyrelay.domain.queue.blocks import Block


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientStats:
    """Statistics of one server. `completed` and `failed` count attempts.

    `blocks` has the server's failures since its last success, by workflow hash: their count, and the end of the block.
    """

    state: ClientState
    url: str
    gpu: str | None
    running: int
    # Workflow hashes of the active runs.
    running_hashes: tuple[str, ...]
    completed: int
    failed: int
    blocked_hashes: frozenset[str]
    blocks: Mapping[str, Block]
    # Workflows that have completed since the last connect, newest first.
    warm_hashes: tuple[str, ...]
    # The workflow that is kept loaded.
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
    """Number of jobs by status. Finished jobs are counted since the pool was opened, even if no longer stored."""

    queued: int
    running: int
    retrying: int
    completed: int
    failed: int
    canceled: int
    clients: Mapping[str, ClientStats]
