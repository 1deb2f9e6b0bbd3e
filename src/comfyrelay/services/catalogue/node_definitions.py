"""Store the node definitions of workers by content hash, and merge them for importing workflows."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import structlog

from comfyrelay.clock import utc_now
from comfyrelay.comfyui.graphs.node_definition_checks import valid_definitions
from comfyrelay.comfyui.graphs.node_definitions import Merging, unpack
from comfyrelay.domain.queue.states import Stage
from comfyrelay.errors import ComfyError, InvalidInput, NotFound
from comfyrelay.services.databases import Databases
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.storage.objects import ObjectStore
from comfyrelay.store.central import catalogue
from comfyrelay.store.central.workers import node_definitions

log = structlog.get_logger(__name__)

FOLDER = "definitions"
# The maximum number of distinct definitions to merge. Most workers of a fleet have the same definitions.
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
        graph_fleets: Sequence[tuple[Stage, str]] = (),
        live: LoadLive | None = None,
        on_new: Callable[[], None] = lambda: None,
    ) -> None:
        """`graph_fleets` run the graphs sent by clients. `on_new` is called when the definitions of a worker have
        changed."""
        self._databases = databases
        self._objects = objects
        self._stage = stage
        self._graph_fleets = graph_fleets
        self._live = live
        self._on_new = on_new
        self._merging = asyncio.Lock()
        # The merged definitions of all workers, and of workers that run the graphs of clients.
        self._merged: dict[bool, tuple[Sequence[str], Mapping[str, Any] | None]] = {}

    async def register(self, worker_id: str, sha256: str) -> bool:
        """Record which definitions a worker has. Returns false if they are unknown and the worker must send them."""
        if not await self._objects.exists(_path(sha256)):
            return False
        async with self._databases.central.read() as tx:
            known = await node_definitions.of_worker(tx, worker_id)
        if known != sha256:
            await self._databases.central.run(
                TransactionStep.WORKER, lambda tx: node_definitions.set_hash(tx, worker_id, sha256)
            )
            self._on_new()
        return True

    async def store(self, worker_id: str, sha256: str, data: bytes) -> None:
        """Store the definitions of a worker: first the object, then the row that refers to the object."""
        await asyncio.to_thread(unpack, data, sha256=sha256)
        await self._objects.put(_path(sha256), data)
        await self._databases.central.run(
            TransactionStep.WORKER, lambda tx: node_definitions.set_hash(tx, worker_id, sha256)
        )
        self._on_new()

    async def load(self, *, of_clients: bool = False) -> tuple[Mapping[str, Any] | None, str]:
        """Return the definitions of the local ComfyUI or of the workers, and the reason if there are none. With
        `of_clients`, use only workers that run the graphs of clients."""
        why = "No worker has reported its nodes."
        if self._live is not None:
            try:
                return await asyncio.to_thread(valid_definitions, await self._live()), ""
            except ComfyError as error:
                why = error.detail
        return await self._merge_definitions(of_clients=of_clients), why

    async def remove_unused(self, *, grace_seconds: float) -> int:
        """Remove definitions that no worker or fleet uses, and return their number. Workers send removed definitions
        again when needed."""
        now = utc_now()
        old = [
            object_.path
            async for object_ in self._objects.list(FOLDER)
            if (now - object_.modified_at).total_seconds() >= grace_seconds
        ]
        if not old:
            return 0
        async with self._databases.central.read() as tx:
            used = {_path(sha256) for sha256 in await node_definitions.used_hashes(tx)}
        unused = [path for path in old if path not in used]
        if unused:
            await self._objects.remove_many(unused)
        return len(unused)

    async def _merge_definitions(self, *, of_clients: bool) -> Mapping[str, Any] | None:
        fleet_ids: list[int] | None = None
        async with self._databases.central.read() as tx:
            if of_clients and self._graph_fleets:
                found = [await catalogue.fleet(tx, stage=stage, slug=slug) for stage, slug in self._graph_fleets]
                fleet_ids = [fleet.id for fleet in found if fleet is not None]
            hashes = await node_definitions.of_stage(tx, self._stage, fleet_ids=fleet_ids, limit=MAX_MERGED)
        # One merge at a time: definitions are large, and waiting callers need the same result.
        async with self._merging:
            for known, merged in self._merged.values():
                if known == hashes:
                    return merged
            merging, count = Merging(), 0
            for sha256 in hashes:
                # Keep only one definition in memory at a time.
                if (definitions := await self._read(sha256)) is not None:
                    await asyncio.to_thread(merging.add, definitions)
                    count += 1
            merged = merging.merged if count else None
            # Do not cache an incomplete merge.
            self._merged.pop(of_clients, None)
            if count == len(hashes):
                self._merged[of_clients] = hashes, merged
            return merged

    async def _read(self, sha256: str) -> Mapping[str, Any] | None:
        try:
            return await asyncio.to_thread(unpack, await self._objects.get(_path(sha256)), sha256=sha256)
        except (NotFound, InvalidInput) as error:
            # The worker will send the definitions again.
            log.warning("node_definitions.unreadable", sha256=sha256, why=error.detail)
            return None


def _path(sha256: str) -> str:
    return f"{FOLDER}/{sha256}.json.gz"
