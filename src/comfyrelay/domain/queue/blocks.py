"""Block a worker from a workflow hash for a while after failures. The queue and the workflow pool share this rule."""

from dataclasses import dataclass
from datetime import datetime, timedelta

BLOCKED_EVENT = "client:blocked_workflow"
UNBLOCKED_EVENT = "client:unblocked_workflow"
# If one server lacks memory that others have, it is rarely freed within the usual cooldown.
OUT_OF_MEMORY_COOLDOWN = timedelta(minutes=15)


@dataclass(frozen=True, kw_only=True, slots=True)
class FailoverPolicy:
    max_failures_before_block: int = 1
    cooldown: timedelta = timedelta(seconds=60)


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Failures of one (worker, workflow hash) pair since its last success."""

    failure_count: int = 0
    blocked_until: datetime | None = None
    # The last failure, for operators.
    reason: str | None = None
    # A block for running out of memory also ends when ComfyUI restarts.
    is_out_of_memory: bool = False


def record_failure(block: Block | None, *, policy: FailoverPolicy, now: datetime, reason: str | None = None) -> Block:
    count = (block.failure_count if block else 0) + 1
    until = now + policy.cooldown if count >= policy.max_failures_before_block else None
    return Block(failure_count=count, blocked_until=until, reason=reason)


def record_out_of_memory(block: Block | None, *, policy: FailoverPolicy, now: datetime, reason: str) -> Block:
    """Block a pair at once, because another worker may have enough memory."""
    return Block(
        failure_count=(block.failure_count if block else 0) + 1,
        blocked_until=now + max(policy.cooldown, OUT_OF_MEMORY_COOLDOWN),
        reason=reason,
        is_out_of_memory=True,
    )


def is_blocked(blocked_until: datetime | None, *, now: datetime) -> bool:
    return blocked_until is not None and blocked_until > now
