"""Read metrics from the databases and cache them for a few seconds."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from comfyrelay.errors import DatabaseUnavailable
from comfyrelay.services.databases import Databases
from comfyrelay.services.timed_cache import TimedCache
from comfyrelay.store import metrics
from comfyrelay.store.metrics import LeaseCount, QueueDepth

CACHE_SECONDS = 5.0
# A workflow that is blocked on this many workers is suspect.
SEVERAL_WORKERS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardMetrics:
    """The age of the oldest submission in a shard's outbox, and the number of its undelivered webhooks."""

    submission_seconds: float
    undelivered_webhooks: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Metrics:
    """The metrics of all databases. An unreachable database is not `up`, and its metrics are missing."""

    up: Mapping[str, bool] = field(default_factory=dict)
    queues: Sequence[QueueDepth] = ()
    leased: Sequence[LeaseCount] = ()
    suspects: int = 0
    outbox_seconds: Mapping[str, float] = field(default_factory=dict)
    shards: Mapping[str, ShardMetrics] = field(default_factory=dict)


class MetricsReader:
    def __init__(self, databases: Databases) -> None:
        self._databases = databases
        self._cache = TimedCache(self._read)
        # Finished jobs by status. Each process counts only the jobs whose final update it applied.
        self.ended: Counter[str] = Counter()

    def count_ended(self, statuses: Sequence[str]) -> None:
        self.ended.update(statuses)

    async def read(self) -> Metrics:
        return await self._cache.get(seconds=CACHE_SECONDS)

    async def _read(self) -> Metrics:
        names = list(self._databases.shards)
        reading = asyncio.gather(*map(self._read_shard, names))
        central, shards = await self._read_central(), await reading
        found = {name: read for name, read in zip(names, shards, strict=True) if read is not None}
        up = {self._databases.central.name: central is not None, **{name: name in found for name in names}}
        return replace(central or Metrics(), up=up, shards=found)

    async def _read_central(self) -> Metrics | None:
        try:
            async with self._databases.central.read() as tx:
                return Metrics(
                    queues=await metrics.queues(tx),
                    leased=await metrics.leased(tx),
                    suspects=await metrics.suspects(tx, blocked_workers=SEVERAL_WORKERS),
                    outbox_seconds=await metrics.entry_ages(tx),
                )
        except DatabaseUnavailable:
            return None

    async def _read_shard(self, name: str) -> ShardMetrics | None:
        try:
            async with self._databases.shard(name).read() as tx:
                return ShardMetrics(
                    submission_seconds=await metrics.submission_age(tx),
                    undelivered_webhooks=await metrics.undelivered(tx),
                )
        except DatabaseUnavailable:
            return None
