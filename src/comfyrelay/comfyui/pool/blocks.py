"""Record failures of servers per workflow, store them in the queue, and emit events about blocks."""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import structlog

from comfyrelay.comfyui.pool.events import ClientBlockedWorkflow, ClientUnblockedWorkflow, PoolEvent
from comfyrelay.comfyui.pool.failover import FailoverStrategy, Pair
from comfyrelay.comfyui.pool.queue import QueueAdapter
from comfyrelay.domain.queue.blocks import Block
from comfyrelay.errors import ComfyError

log = structlog.get_logger(__name__)


class Blocks:
    def __init__(
        self,
        *,
        failover: FailoverStrategy,
        queue: QueueAdapter,
        emit: Callable[[PoolEvent], None],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        unblocked: Callable[[str], None],
    ) -> None:
        """`unblocked` is called with the client id of a server that may be used again."""
        self._failover = failover
        self._queue = queue
        self._emit = emit
        self._spawn = spawn
        self._unblocked = unblocked

    def restore(self, stored: Mapping[Pair, Block]) -> None:
        for (client_id, workflow_hash), block in stored.items():
            self._failover.restore(client_id, workflow_hash, block)
            if workflow_hash not in self._failover.blocks(client_id):
                self._keep(client_id, workflow_hash)

    def failed(self, client_id: str, workflow_hash: str, error: ComfyError) -> None:
        until = self._failover.record_failure(client_id, workflow_hash, error)
        self._keep(client_id, workflow_hash)
        if until is not None:
            self._emit(ClientBlockedWorkflow(client_id=client_id, workflow_hash=workflow_hash, blocked_until=until))

    def succeeded(self, client_id: str, workflow_hash: str) -> None:
        had_failed = workflow_hash in self._failover.blocks(client_id)
        was_blocked = self._failover.record_success(client_id, workflow_hash)
        if had_failed:
            self._keep(client_id, workflow_hash)
        if was_blocked:
            self._announce(client_id, workflow_hash)

    def lift(self, client_id: str, workflow_hash: str) -> bool:
        was_blocked = self._failover.lift(client_id, workflow_hash)
        self._keep(client_id, workflow_hash)
        if was_blocked:
            self._announce(client_id, workflow_hash)
        return was_blocked

    def release(self) -> None:
        """Announce blocks that have expired."""
        for client_id, workflow_hash in self._failover.release():
            self._keep(client_id, workflow_hash)
            self._announce(client_id, workflow_hash)

    def _announce(self, client_id: str, workflow_hash: str) -> None:
        self._unblocked(client_id)
        self._emit(ClientUnblockedWorkflow(client_id=client_id, workflow_hash=workflow_hash))

    def _keep(self, client_id: str, workflow_hash: str) -> None:
        # Written in the background: losing a block costs one attempt.
        if self._queue.durable:
            self._spawn(self._write(client_id, workflow_hash))

    async def _write(self, client_id: str, workflow_hash: str) -> None:
        try:
            # Write the current block: of several writes, the last one started has the newest.
            await self._queue.store_block(client_id, workflow_hash, self._failover.blocks(client_id).get(workflow_hash))
        except Exception:
            log.exception("pool.block_not_stored", client_id=client_id, workflow_hash=workflow_hash)
