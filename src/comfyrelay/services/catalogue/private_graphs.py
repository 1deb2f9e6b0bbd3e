"""Limit the graphs of private workflows per tenant, and remove graphs that are no longer used.

A graph has a row in its tenant's shard before its object is written. It is removed when no workflow or job has referred
to it for a grace period, in which a submission that has read the workflow can still write its job.
"""

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import structlog

from comfyrelay.configuration import ENV_PREFIX
from comfyrelay.domain.ids import editor_path, new_id, private_graph_path
from comfyrelay.domain.space import check_space
from comfyrelay.errors import DatabaseUnavailable, TooLarge
from comfyrelay.services.databases import Databases
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central import catalogue
from comfyrelay.store.database import Database, Tx
from comfyrelay.store.tenant import ledger, removals
from comfyrelay.store.tenant.library import graphs
from comfyrelay.store.tenant.library.graphs import StoredGraph
from comfyrelay.text import format_bytes

log = structlog.get_logger(__name__)

BATCH_SIZE = 200


class PrivateGraphs:
    def __init__(self, databases: Databases, *, max_bytes: int, max_tenant_bytes: int | None) -> None:
        """`max_bytes` is the limit per graph, and `max_tenant_bytes` is the limit per tenant."""
        self._databases = databases
        self.max_bytes = max_bytes
        self._max_tenant_bytes = max_tenant_bytes

    async def reserve(
        self, tenant_id: str, text: bytes, properties: Sequence[Mapping[str, Any]], *, editor_bytes: int | None = None
    ) -> str:
        """Return the storage path of a graph, which is the same for equal graphs of a tenant.

        `editor_bytes` is the size of an editor file that replaces the graph's previous one.
        """
        if len(text) > self.max_bytes:
            limit = f"{format_bytes(self.max_bytes)} ({ENV_PREFIX}MAX_GRAPH_BYTES)"
            raise TooLarge(f"The graph is too large: {format_bytes(len(text))}, but the limit is {limit}.")
        sha256 = hashlib.sha256(text).hexdigest()
        more_bytes, properties_hash = await asyncio.to_thread(_measure, properties)

        async def work(tx: Tx) -> StoredGraph:
            # The lock prevents concurrent imports from storing an equal graph twice.
            await ledger.lock_wallet(tx, tenant_id)
            known = await graphs.find(tx, tenant_id, sha256)
            if known is None:
                size = len(text) + more_bytes + (editor_bytes or 0)
                stored = StoredGraph(new_id(), tenant_id, size, editor_bytes or 0, properties_hash)
                await graphs.create(tx, stored, sha256=sha256)
            else:
                size = 0 if known.properties_hash == properties_hash else more_bytes
                editor = known.editor_bytes if editor_bytes is None else editor_bytes
                size += editor - known.editor_bytes
                stored = known._replace(bytes=known.bytes + size, editor_bytes=editor, properties_hash=properties_hash)
                await graphs.use(tx, stored)
            taken = await ledger.take_space(tx, tenant_id, size) if size else 0
            if size > 0:
                check_space(taken, max_bytes=self._max_tenant_bytes)
            return stored

        shard = await self._databases.shard_of(tenant_id)
        return _path(await shard.run(TransactionStep.TENANT, work))

    async def remove_unused(self, *, grace_seconds: float) -> int:
        """Remove unused graphs, and return their number. Nothing is removed while a shard is unreachable, because its
        jobs may use graphs of other tenants through effects."""
        try:
            shards = [self._databases.shard(name) for name in self._databases.shards]
            return sum([await self._remove_unused(shard, grace_seconds) for shard in shards])
        except DatabaseUnavailable as error:
            log.info("private_graphs.shard_down", why=error.detail)
            return 0

    async def _remove_unused(self, shard: Database, grace_seconds: float) -> int:
        count, after = 0, ""
        while True:
            async with shard.read() as tx:
                found = await graphs.page(tx, after_id=after, limit=BATCH_SIZE)
            if not found:
                return count
            count += await self._check(shard, found, grace_seconds)
            after = found[-1].id

    async def _check(self, shard: Database, found: Sequence[StoredGraph], grace_seconds: float) -> int:
        paths = {graph.id: _path(graph) for graph in found}
        async with self._databases.central.read() as tx:
            in_use = await catalogue.used_graphs(tx, paths.values())
        for name in self._databases.shards:
            async with self._databases.shard(name).read() as tx:
                in_use |= await graphs.used_by_jobs(tx, paths.values())
        unused = [id_ for id_, path in paths.items() if path not in in_use]

        async def work(tx: Tx) -> list[StoredGraph]:
            await ledger.lock_wallets(tx, {graph.tenant_id for graph in found})
            removed = await graphs.remove(tx, unused, unused_seconds=grace_seconds)
            for graph in removed:
                await ledger.take_space(tx, graph.tenant_id, -graph.bytes)
                paths_of_graph = [_path(graph), editor_path(_path(graph))]
                await removals.schedule(tx, graph.tenant_id, paths_of_graph, after_seconds=0)
            await graphs.mark(tx, used=paths.keys() - set(unused), unused=unused)
            return removed

        removed = await shard.run(TransactionStep.RETENTION_REMOVE, work)
        if removed:
            forget = partial(catalogue.forget_properties, paths=list(map(_path, removed)))
            await self._databases.central.run(TransactionStep.CATALOGUE, forget)
        return len(removed)


def _path(graph: StoredGraph) -> str:
    return private_graph_path(graph.tenant_id, graph.id)


def _measure(properties: Sequence[Mapping[str, Any]]) -> tuple[int, str]:
    text = json.dumps(list(properties), sort_keys=True).encode()
    return len(text), hashlib.sha256(text).hexdigest()
