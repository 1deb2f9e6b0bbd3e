"""Block a worker from a workflow hash for a while after failures. The queue and the workflow pool share this rule."""

from dataclasses import dataclass
from datetime import datetime, timedelta

BLOCKED_EVENT = "client:blocked_workflow"
UNBLOCKED_EVENT = "client:unblocked_workflow"


@dataclass(frozen=True, kw_only=True, slots=True)
class FailoverPolicy:
    max_failures_before_block: int = 1
    cooldown: timedelta = timedelta(seconds=60)


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Failures of one (worker, workflow hash) pair since its last success."""

    failure_count: int = 0
    blocked_until: datetime | None = None


def record_failure(block: Block | None, *, policy: FailoverPolicy, now: datetime) -> Block:
    count = (block.failure_count if block else 0) + 1
    until = now + policy.cooldown if count >= policy.max_failures_before_block else None
    return Block(failure_count=count, blocked_until=until)


def is_blocked(blocked_until: datetime | None, *, now: datetime) -> bool:
    return blocked_until is not None and blocked_until > now
