"""The definitions of the nodes that workers have: kept once for each content, merged for whoever reads a workflow."""

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
# Of so many different ones the choices are united; workers of a fleet have mostly the same.
MOST_MERGED = 16

# Definitions as a ComfyUI has them now; `ComfyError` says why it has none.
Live = Callable[[], Awaitable[Mapping[str, Any]]]


class NodeDefinitionService:
    def __init__(
        self,
        databases: Databases,
        objects: ObjectStore,
        *,
        stage: Stage,
        live: Live | None = None,
        on_new: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_new` is told when a worker has others than before."""
        self._databases = databases
        self._objects = objects
        self._stage = stage
        self._live = live
        self._on_new = on_new
        self._merging = asyncio.Lock()
        self._merged: tuple[Sequence[str], Mapping[str, Any] | None] | None = None

    async def note(self, worker_id: str, sha256: str) -> bool:
        """A worker has these; false when they are not known here, and must be sent."""
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

    async def keep(self, worker_id: str, sha256: str, data: bytes) -> None:
        """A worker sends what it has; the object is there before a row names it."""
        await asyncio.to_thread(unpack, data, sha256=sha256)
        await self._objects.put(_path(sha256), data)
        await self._databases.central.run(
            TransactionStep.WORKER, lambda tx: node_definitions.note(tx, worker_id, sha256)
        )
        self._on_new()

    async def known(self) -> tuple[Mapping[str, Any] | None, str]:
        """Those of a ComfyUI that can be asked, else those of the workers; where there are none, why."""
        why = "No worker has told which nodes it has."
        if self._live is not None:
            try:
                return await asyncio.to_thread(in_shape, await self._live()), ""
            except ComfyError as error:
                why = error.detail
        return await self._of_workers(), why

    async def remove_unused(self, *, grace_seconds: float) -> int:
        """Remove what no worker and no fleet has; returns how much that was. A worker that comes back with some that
        were removed in this moment sends them again."""
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
            hashes = await node_definitions.of_stage(tx, self._stage, limit=MOST_MERGED)
        # one at a time: they are large, and whoever waits needs the same
        async with self._merging:
            if self._merged is not None and self._merged[0] == hashes:
                return self._merged[1]
            merging, count = Merging(), 0
            for sha256 in hashes:
                # each is let go before the next is read
                if (found := await self._read(sha256)) is not None:
                    await asyncio.to_thread(merging.add, found)
                    count += 1
            merged = merging.merged if count else None
            # what is missing may be there the next time
            self._merged = (hashes, merged) if count == len(hashes) else None
            return merged

    async def _read(self, sha256: str) -> Mapping[str, Any] | None:
        try:
            return await asyncio.to_thread(unpack, await self._objects.get(_path(sha256)), sha256=sha256)
        except (NotFound, InvalidInput) as error:
            # its worker sends it again when it next asks
            log.warning("node_definitions.unreadable", sha256=sha256, why=error.detail)
            return None


def _path(sha256: str) -> str:
    return f"{FOLDER}/{sha256}.json.gz"
