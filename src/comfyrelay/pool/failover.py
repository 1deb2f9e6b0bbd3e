"""Which server must not get which workflow, and until when."""

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from heapq import heappop, heappush
from typing import Protocol

from comfyrelay.clock import utc_now
from comfyrelay.domain.failover import Block, FailoverPolicy, is_blocked, record_failure
from comfyrelay.errors import ComfyError

Clock = Callable[[], datetime]
# client id, workflow hash
Pair = tuple[str, str]


class FailoverStrategy(Protocol):
    def should_skip(self, client_id: str, workflow_hash: str) -> bool:
        """Whether this server must not get this workflow now. Asked often: must be quick."""

    def record_failure(self, client_id: str, workflow_hash: str, error: ComfyError) -> datetime | None:
        """The server failed at it. Returns until when the pair is blocked, if it is."""

    def record_success(self, client_id: str, workflow_hash: str) -> bool:
        """The server completed it. Returns whether that ended a block."""

    def release(self) -> list[Pair]:
        """The pairs whose block has ended since the last call; they may be used again from then on."""

    def seconds_to_release(self) -> float | None:
        """How long until the next block ends; `None` when there is none."""

    def blocked_hashes(self, client_id: str) -> frozenset[str]:
        """The workflows that this server does not get now."""


class SmartFailover:
    """A pair is blocked for a cooldown from its nth failure in a row on; at its end it starts with a clean slate.

    Only the pair is blocked: the server gets other workflows, and other servers get this one.
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
        self._blocks: dict[Pair, Block] = {}
        self._ends: list[tuple[datetime, Pair]] = []
        self._released: list[Pair] = []

    def should_skip(self, client_id: str, workflow_hash: str) -> bool:
        self._expire()
        block = self._blocks.get((client_id, workflow_hash))
        return block is not None and is_blocked(block.blocked_until, now=self._clock())

    def record_failure(
        self,
        client_id: str,
        workflow_hash: str,
        error: ComfyError,  # noqa: ARG002 — for strategies that look at it
    ) -> datetime | None:
        self._expire()
        pair, now = (client_id, workflow_hash), self._clock()
        block = self._blocks[pair] = record_failure(self._blocks.get(pair), policy=self._policy, now=now)
        if block.blocked_until is None or not is_blocked(block.blocked_until, now=now):
            return None
        heappush(self._ends, (block.blocked_until, pair))
        return block.blocked_until

    def record_success(self, client_id: str, workflow_hash: str) -> bool:
        self._expire()
        block = self._blocks.pop((client_id, workflow_hash), None)
        return block is not None and is_blocked(block.blocked_until, now=self._clock())

    def release(self) -> list[Pair]:
        self._expire()
        released, self._released = self._released, []
        return released

    def seconds_to_release(self) -> float | None:
        self._expire()
        if self._released:
            return 0.0
        return (self._ends[0][0] - self._clock()).total_seconds() if self._ends else None

    def blocked_hashes(self, client_id: str) -> frozenset[str]:
        now = self._clock()
        return frozenset(
            workflow_hash
            for (client, workflow_hash), block in self._blocks.items()
            if client == client_id and is_blocked(block.blocked_until, now=now)
        )

    def _expire(self) -> None:
        """Forget the blocks that have ended."""
        while self._ends:
            until, pair = self._ends[0]
            block = self._blocks.get(pair)
            if block is not None and block.blocked_until == until:
                if is_blocked(until, now=self._clock()):
                    return
                del self._blocks[pair]
                self._released.append(pair)
            # else: a later failure moved the end, or a success lifted the block
            heappop(self._ends)


def steady_clock() -> Clock:
    """The time in UTC as it is now, going on evenly even if the machine's clock is set."""
    start, started = utc_now(), time.monotonic()
    return lambda: start + timedelta(seconds=time.monotonic() - started)
