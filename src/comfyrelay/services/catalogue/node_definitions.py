"""Node definitions of workers, stored by content hash and merged to import workflows."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import structlog

from comfyrelay.clock import utc_now
from comfyrelay.comfyui.graphs.node_definition_checks import in_shape
from comfyrelay.comfyui.graphs.node_definitions import Merging, unpack
from comfyrelay.domain.queue.states import Stage
from comfyrelay.errors import ComfyError, InvalidInput, NotFound
from comfyrelay.services.databases import Databases
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.storage.objects import ObjectStore
from comfyrelay.store.central.workers import node_definitions

log = structlog.get_logger(__name__)

FOLDER = "definitions"
# Distinct definitions whose choices are merged; workers of a fleet mostly have the same.
MAX_MERGED = 16

# Loads the current definitions of a ComfyUI, or raises `ComfyError`.
LoadLive = Callable[[], Awaitable[Mapping[str, Any]]]


class NodeDefinitionService:
    def __init__(
        self,
        databases: Databases,
        objects: ObjectStore,
        *,
        stage: Stage,
        live: LoadLive | None = None,
        on_new: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_new` is called when the definitions of a worker have changed."""
        self._databases = databases
        self._objects = objects
        self._stage = stage
        self._live = live
        self._on_new = on_new
        self._merging = asyncio.Lock()
        self._merged: tuple[Sequence[str], Mapping[str, Any] | None] | None = None

    async def register(self, worker_id: str, sha256: str) -> bool:
        """Record the definitions of a worker. Returns false if they are unknown and must be sent."""
        if not await self._objects.exists(_path(sha256)):
            return False
        async with self._databases.central.read() as tx:
            known = await node_definitions.of_worker(tx, worker_id)
        if known != sha256:
            await self._databases.central.run(
                TransactionStep.WORKER, lambda tx: node_definitions.note(tx, worker_id, sha256)
            )
            self._on_new()
        return True

    async def store(self, worker_id: str, sha256: str, data: bytes) -> None:
        """Store definitions sent by a worker: the object first, then the row that names it."""
        await asyncio.to_thread(unpack, data, sha256=sha256)
        await self._objects.put(_path(sha256), data)
        await self._databases.central.run(
            TransactionStep.WORKER, lambda tx: node_definitions.note(tx, worker_id, sha256)
        )
        self._on_new()

    async def load(self) -> tuple[Mapping[str, Any] | None, str]:
        """Definitions of the local ComfyUI, else of the workers; if there are none, the reason."""
        why = "No worker has reported its nodes."
        if self._live is not None:
            try:
                return await asyncio.to_thread(in_shape, await self._live()), ""
            except ComfyError as error:
                why = error.detail
        return await self._of_workers(), why

    async def remove_unused(self, *, grace_seconds: float) -> int:
        """Remove definitions that no worker and no fleet uses; return how many. A worker that still needs one sends it
        again."""
        now = utc_now()
        old = [
            each.path
            async for each in self._objects.list(FOLDER)
            if (now - each.modified_at).total_seconds() >= grace_seconds
        ]
        if not old:
            return 0
        async with self._databases.central.read() as tx:
            used = {_path(each) for each in await node_definitions.named(tx)}
        unused = [each for each in old if each not in used]
        if unused:
            await self._objects.remove_many(unused)
        return len(unused)

    async def _of_workers(self) -> Mapping[str, Any] | None:
        async with self._databases.central.read() as tx:
            hashes = await node_definitions.of_stage(tx, self._stage, limit=MAX_MERGED)
        # one merge at a time: definitions are large, and waiting callers need the same result
        async with self._merging:
            if self._merged is not None and self._merged[0] == hashes:
                return self._merged[1]
            merging, count = Merging(), 0
            for sha256 in hashes:
                # one at a time in memory
                if (found := await self._read(sha256)) is not None:
                    await asyncio.to_thread(merging.add, found)
                    count += 1
            merged = merging.merged if count else None
            # do not cache an incomplete merge
            self._merged = (hashes, merged) if count == len(hashes) else None
            return merged

    async def _read(self, sha256: str) -> Mapping[str, Any] | None:
        try:
            return await asyncio.to_thread(unpack, await self._objects.get(_path(sha256)), sha256=sha256)
        except (NotFound, InvalidInput) as error:
            # its worker sends it again later
            log.warning("node_definitions.unreadable", sha256=sha256, why=error.detail)
            return None


def _path(sha256: str) -> str:
    return f"{FOLDER}/{sha256}.json.gz"
