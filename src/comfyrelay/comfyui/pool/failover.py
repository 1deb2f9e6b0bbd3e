"""Decide who caused a failure, and which workflows a server must not get for some time."""

import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from heapq import heappop, heappush
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

import structlog

from comfyrelay.clock import utc_now
from comfyrelay.comfyui.pool.events import ClientBlockedWorkflow, ClientUnblockedWorkflow, PoolEvent
from comfyrelay.comfyui.pool.queues.queue import QueueAdapter
from comfyrelay.domain.queue.blocks import Block, FailoverPolicy, is_blocked, record_failure
from comfyrelay.errors import ComfyError, Fault, InvalidInput, NodeFailed, NotInstalled

log = structlog.get_logger(__name__)

T = TypeVar("T")
Clock = Callable[[], datetime]
# A server and a workflow: client id and workflow hash.
Pair = tuple[str, str]


class FailureVerdict(StrEnum):
    """Who caused a failure.

    - `JOB`: the job fails, and no server is blamed.
    - `SERVER`: the failure is recorded against the server, and the job is retried.
    - `ELSEWHERE`: the job moves to another online server. If it succeeds there, the failure is recorded against the
      first server; without another server, the job fails.
    - `AGAIN`: the job is retried, and no server is blamed.
    """

    JOB = "job"
    SERVER = "server"
    ELSEWHERE = "elsewhere"
    AGAIN = "again"


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """A failed attempt. `earlier` has the errors of this job on other servers, by client id."""

    client_id: str
    workflow_hash: str
    error: ComfyError
    earlier: Mapping[str, ComfyError]


class FailoverStrategy(Protocol):
    def judge(self, failure: Failure) -> FailureVerdict:
        """Decide who caused a failure. Called for every failure, including node exceptions and rejected graphs.

        With any verdict except `JOB`, a server with missing nodes or models does not get the job again, and the attempt
        does not count. If every server has rejected the job for this reason, the job fails.
        """

    def should_skip(self, client_id: str, workflow_hash: str) -> bool:
        """Whether this server must not get this workflow now. Must be fast, because it is called often."""

    def record_failure(self, client_id: str, workflow_hash: str, error: ComfyError) -> datetime | None:
        """Record a failure of this server. Returns the end of the block if the pair is now blocked."""

    def record_success(self, client_id: str, workflow_hash: str) -> bool:
        """Record a success of this server. Returns whether the success ended a block."""

    def lift(self, client_id: str, workflow_hash: str) -> bool:
        """Remove the block and failure count of a pair on request. Returns whether the pair was blocked."""

    def release(self) -> list[Pair]:
        """Return the pairs whose block has expired since the last call."""

    def seconds_to_release(self) -> float | None:
        """Return the seconds until the next block expires, or `None`."""

    def blocks(self, client_id: str) -> Mapping[str, Block]:
        """Return the failures of this server since its last success, by workflow hash."""

    def blocked_hashes(self, client_id: str) -> frozenset[str]:
        """Return the workflows that are blocked on this server now."""

    def restore(self, client_id: str, workflow_hash: str, block: Block) -> None:
        """Restore a block from a durable queue. An expired block is ignored."""


def complete_or_default(value: T | None, protocol: type, *, name: str, default: type[T]) -> T:
    """Return the value if it implements all methods of the protocol; otherwise raise `InvalidInput`. Inherited stubs do
    not count. Without a value, return an instance of `default`."""
    if value is None:
        return default()
    if isinstance(value, type):
        raise InvalidInput(f"{name} is the class {value.__name__}: pass an instance, such as {value.__name__}().")
    members = {member for member in vars(protocol) if not member.startswith("_") or member == "__len__"}
    missing = sorted(
        member
        for member in members
        if getattr(type(value), member, None) is getattr(protocol, member) or not hasattr(value, member)
    )
    if missing:
        raise InvalidInput(
            f"{name}: {type(value).__name__} lacks {', '.join(missing)}. Implement all methods of {protocol.__name__}, "
            f"or subclass {default.__name__}."
        )
    return value


class SmartFailover:
    """Block a pair for a cooldown after a number of consecutive failures. The count restarts when the block expires.

    Only the pair is blocked: the server gets other workflows, and other servers get this one. A job whose node raised
    an exception is tried once on another server; if it fails there, too, the job fails.
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
        # Failures by client id and workflow hash.
        self._blocks: defaultdict[str, dict[str, Block]] = defaultdict(dict)
        self._ends: list[tuple[datetime, Pair]] = []
        self._released: list[Pair] = []

    def judge(self, failure: Failure) -> FailureVerdict:
        error = failure.error
        if isinstance(error, NotInstalled):
            return FailureVerdict.ELSEWHERE
        if error.fault is not Fault.JOB:
            return FailureVerdict.SERVER if error.fault is Fault.WORKER else FailureVerdict.AGAIN
        has_raised = any(isinstance(earlier, NodeFailed) for earlier in failure.earlier.values())
        return FailureVerdict.ELSEWHERE if isinstance(error, NodeFailed) and not has_raised else FailureVerdict.JOB

    def should_skip(self, client_id: str, workflow_hash: str) -> bool:
        self._expire()
        return self._is_blocked(self._blocks_of(client_id).get(workflow_hash))

    def record_failure(
        self,
        client_id: str,
        workflow_hash: str,
        error: ComfyError,  # noqa: ARG002  (other strategies use it)
    ) -> datetime | None:
        self._expire()
        blocks = self._blocks[client_id]
        block = record_failure(blocks.get(workflow_hash), policy=self._policy, now=self._clock())
        return self._store(client_id, workflow_hash, block)

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
        return MappingProxyType(self._blocks_of(client_id))

    def blocked_hashes(self, client_id: str) -> frozenset[str]:
        return frozenset(digest for digest, block in self._blocks_of(client_id).items() if self._is_blocked(block))

    def restore(self, client_id: str, workflow_hash: str, block: Block) -> None:
        if block.blocked_until is None or self._is_blocked(block):
            self._store(client_id, workflow_hash, block)

    def _blocks_of(self, client_id: str) -> dict[str, Block]:
        return self._blocks.get(client_id) or {}

    def _store(self, client_id: str, workflow_hash: str, block: Block) -> datetime | None:
        self._blocks[client_id][workflow_hash] = block
        if block.blocked_until is None or not self._is_blocked(block):
            return None
        heappush(self._ends, (block.blocked_until, (client_id, workflow_hash)))
        return block.blocked_until

    def _forget(self, client_id: str, workflow_hash: str) -> Block | None:
        blocks = self._blocks_of(client_id)
        block = blocks.pop(workflow_hash, None)
        if not blocks:
            self._blocks.pop(client_id, None)
        return block

    def _is_blocked(self, block: Block | None) -> bool:
        return block is not None and is_blocked(block.blocked_until, now=self._clock())

    def _expire(self) -> None:
        """Remove expired blocks."""
        while self._ends:
            until, (client_id, workflow_hash) = self._ends[0]
            block = self._blocks_of(client_id).get(workflow_hash)
            if block is not None and block.blocked_until == until:
                if self._is_blocked(block):
                    return
                self._forget(client_id, workflow_hash)
                self._released.append((client_id, workflow_hash))
            # Otherwise, a later failure moved the end of the block, or a success removed the block.
            heappop(self._ends)


def steady_clock() -> Clock:
    """Return a UTC clock that advances evenly even if the system clock is changed."""
    start, started = utc_now(), time.monotonic()
    return lambda: start + timedelta(seconds=time.monotonic() - started)


class Blocks:
    """Record failures per server and workflow, store them in the queue, and emit events about blocks."""

    def __init__(
        self,
        *,
        failover: FailoverStrategy,
        queue: QueueAdapter,
        emit: Callable[[PoolEvent], None],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        on_unblocked: Callable[[str], None],
    ) -> None:
        """`on_unblocked` is called with the client id of a server that may be used again."""
        self._failover = failover
        self._queue = queue
        self._emit = emit
        self._spawn = spawn
        self._on_unblocked = on_unblocked

    def restore(self, stored: Mapping[Pair, Block]) -> None:
        for (client_id, workflow_hash), block in stored.items():
            self._failover.restore(client_id, workflow_hash, block)
            if workflow_hash not in self._failover.blocks(client_id):
                self._store(client_id, workflow_hash)

    def record_failure(self, client_id: str, workflow_hash: str, error: ComfyError) -> None:
        until = self._failover.record_failure(client_id, workflow_hash, error)
        self._store(client_id, workflow_hash)
        if until is not None:
            self._emit(ClientBlockedWorkflow(client_id=client_id, workflow_hash=workflow_hash, blocked_until=until))

    def record_success(self, client_id: str, workflow_hash: str) -> None:
        had_failed = workflow_hash in self._failover.blocks(client_id)
        was_blocked = self._failover.record_success(client_id, workflow_hash)
        if had_failed:
            self._store(client_id, workflow_hash)
        if was_blocked:
            self._announce_unblocked(client_id, workflow_hash)

    def lift(self, client_id: str, workflow_hash: str) -> bool:
        was_blocked = self._failover.lift(client_id, workflow_hash)
        self._store(client_id, workflow_hash)
        if was_blocked:
            self._announce_unblocked(client_id, workflow_hash)
        return was_blocked

    def release_expired(self) -> None:
        for client_id, workflow_hash in self._failover.release():
            self._store(client_id, workflow_hash)
            self._announce_unblocked(client_id, workflow_hash)

    def _announce_unblocked(self, client_id: str, workflow_hash: str) -> None:
        self._on_unblocked(client_id)
        self._emit(ClientUnblockedWorkflow(client_id=client_id, workflow_hash=workflow_hash))

    def _store(self, client_id: str, workflow_hash: str) -> None:
        # No caller waits for the write: a lost block only costs one attempt.
        if self._queue.durable:
            self._spawn(self._write(client_id, workflow_hash))

    async def _write(self, client_id: str, workflow_hash: str) -> None:
        try:
            # Read the block here, so that the last of several writes stores the newest block.
            await self._queue.store_block(client_id, workflow_hash, self._failover.blocks(client_id).get(workflow_hash))
        except Exception:
            log.exception("pool.block_not_stored", client_id=client_id, workflow_hash=workflow_hash)
