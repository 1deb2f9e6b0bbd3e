"""Whose a failure is, and which server must not get which workflow, until when."""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from heapq import heappop, heappush
from types import MappingProxyType
from typing import Protocol

from comfyrelay.clock import utc_now
from comfyrelay.domain.queue.blocks import Block, FailoverPolicy, is_blocked, record_failure
from comfyrelay.errors import ComfyError, Fault, NodeFailed, NotInstalled

Clock = Callable[[], datetime]
# client id, workflow hash
Pair = tuple[str, str]


class FailureVerdict(StrEnum):
    """Whose a failure is.

    - `JOB`: the job fails, and no server is blamed.
    - `SERVER`: the failure is recorded against the server, and the job is tried again.
    - `ELSEWHERE`: the job goes to another server that is online. When it succeeds there, the failure is recorded
      against the first server after all; when there is no other, it is the job's.
    - `AGAIN`: the job is tried again, and no server is blamed.
    """

    JOB = "job"
    SERVER = "server"
    ELSEWHERE = "elsewhere"
    AGAIN = "again"


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """`earlier` is what failed this job on other servers before, by their client ids."""

    client_id: str
    workflow_hash: str
    error: ComfyError
    earlier: Mapping[str, ComfyError]


class FailoverStrategy(Protocol):
    def judge(self, failure: Failure) -> FailureVerdict:
        """Whose failure this is. Asked for each one, also for a node's exception and for a graph that is refused.

        Whatever the verdict but `JOB`, a server that lacks nodes or models does not get the job again; that costs no
        attempt, and when every server has refused the job so, it fails.
        """

    def should_skip(self, client_id: str, workflow_hash: str) -> bool:
        """Whether this server must not get this workflow now. Asked often: must be quick."""

    def record_failure(self, client_id: str, workflow_hash: str, error: ComfyError) -> datetime | None:
        """The server failed at it. Returns until when the pair is blocked, if it is."""

    def record_success(self, client_id: str, workflow_hash: str) -> bool:
        """The server completed it. Returns whether that ended a block."""

    def lift(self, client_id: str, workflow_hash: str) -> bool:
        """Somebody lifts the block of a pair by hand, its count with it. Returns whether it was blocked."""

    def release(self) -> list[Pair]:
        """The pairs whose block has ended since the last call; they may be used again from then on."""

    def seconds_to_release(self) -> float | None:
        """How long until the next block ends; `None` when there is none."""

    def blocks(self, client_id: str) -> Mapping[str, Block]:
        """The failures of this server since its last success, by workflow hash."""

    def blocked_hashes(self, client_id: str) -> frozenset[str]:
        """The workflows that this server does not get now."""

    def restore(self, client_id: str, workflow_hash: str, block: Block) -> None:
        """What a durable queue has kept of an earlier life; a block that has ended meanwhile is forgotten."""


class SmartFailover:
    """A pair is blocked for a cooldown from its nth failure in a row on; at its end it starts with a clean slate.

    Only the pair is blocked: the server gets other workflows, and other servers get this one. A job whose node raised
    is tried once elsewhere; if it fails there, too, the failure is the job's.
    """

    def __init__(
        self,
        *,
        cooldown_seconds: float = 60.0,
        max_failures_before_block: int = 1,
        clock: Clock | None = None,
    ) -> None:
        self._policy = FailoverPolicy(
            max_failures_before_block=max_failures_before_block, cooldown=timedelta(seconds=cooldown_seconds)
        )
        self._clock = clock or steady_clock()
        # client id → workflow hash → its failures
        self._blocks: defaultdict[str, dict[str, Block]] = defaultdict(dict)
        self._ends: list[tuple[datetime, Pair]] = []
        self._released: list[Pair] = []

    def judge(self, failure: Failure) -> FailureVerdict:
        error = failure.error
        if isinstance(error, NotInstalled):
            return FailureVerdict.ELSEWHERE
        if error.fault is not Fault.JOB:
            return FailureVerdict.SERVER if error.fault is Fault.WORKER else FailureVerdict.AGAIN
        has_raised = any(isinstance(each, NodeFailed) for each in failure.earlier.values())
        return FailureVerdict.ELSEWHERE if isinstance(error, NodeFailed) and not has_raised else FailureVerdict.JOB

    def should_skip(self, client_id: str, workflow_hash: str) -> bool:
        self._expire()
        return self._is_blocked(self._of(client_id).get(workflow_hash))

    def record_failure(
        self,
        client_id: str,
        workflow_hash: str,
        error: ComfyError,  # noqa: ARG002 — for strategies that look at it
    ) -> datetime | None:
        self._expire()
        blocks = self._blocks[client_id]
        block = record_failure(blocks.get(workflow_hash), policy=self._policy, now=self._clock())
        return self._note(client_id, workflow_hash, block)

    def record_success(self, client_id: str, workflow_hash: str) -> bool:
        return self.lift(client_id, workflow_hash)

    def lift(self, client_id: str, workflow_hash: str) -> bool:
        self._expire()
        return self._is_blocked(self._forget(client_id, workflow_hash))

    def release(self) -> list[Pair]:
        self._expire()
        released, self._released = self._released, []
        return released

    def seconds_to_release(self) -> float | None:
        self._expire()
        if self._released:
            return 0.0
        return (self._ends[0][0] - self._clock()).total_seconds() if self._ends else None

    def blocks(self, client_id: str) -> Mapping[str, Block]:
        self._expire()
        return MappingProxyType(self._of(client_id))

    def blocked_hashes(self, client_id: str) -> frozenset[str]:
        return frozenset(digest for digest, block in self._of(client_id).items() if self._is_blocked(block))

    def restore(self, client_id: str, workflow_hash: str, block: Block) -> None:
        if block.blocked_until is None or self._is_blocked(block):
            self._note(client_id, workflow_hash, block)

    def _of(self, client_id: str) -> dict[str, Block]:
        return self._blocks.get(client_id) or {}

    def _note(self, client_id: str, workflow_hash: str, block: Block) -> datetime | None:
        self._blocks[client_id][workflow_hash] = block
        if block.blocked_until is None or not self._is_blocked(block):
            return None
        heappush(self._ends, (block.blocked_until, (client_id, workflow_hash)))
        return block.blocked_until

    def _forget(self, client_id: str, workflow_hash: str) -> Block | None:
        blocks = self._of(client_id)
        block = blocks.pop(workflow_hash, None)
        if not blocks:
            self._blocks.pop(client_id, None)
        return block

    def _is_blocked(self, block: Block | None) -> bool:
        return block is not None and is_blocked(block.blocked_until, now=self._clock())

    def _expire(self) -> None:
        """Forget the blocks that have ended."""
        while self._ends:
            until, (client_id, workflow_hash) = self._ends[0]
            block = self._of(client_id).get(workflow_hash)
            if block is not None and block.blocked_until == until:
                if self._is_blocked(block):
                    return
                self._forget(client_id, workflow_hash)
                self._released.append((client_id, workflow_hash))
            # else: a later failure moved the end, or a success lifted the block
            heappop(self._ends)


def steady_clock() -> Clock:
    """The time in UTC as it is now, going on evenly even if the machine's clock is set."""
    start, started = utc_now(), time.monotonic()
    return lambda: start + timedelta(seconds=time.monotonic() - started)
