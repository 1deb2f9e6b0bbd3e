"""Read metrics from the databases, cached for a few seconds."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from comfyrelay.errors import DatabaseUnavailable
from comfyrelay.services.databases import Databases
from comfyrelay.store import metrics
from comfyrelay.store.metrics import LeaseCount, QueueDepth

CACHE_SECONDS = 5.0
# A workflow that is blocked on this many workers is suspect.
SEVERAL_WORKERS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardFigures:
    """Age of the oldest submission in a shard's outbox, and its undelivered webhooks."""

    submission_seconds: float
    undelivered_webhooks: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """Figures of all databases. An unreachable one is not `up`, and its figures are missing."""

    up: Mapping[str, bool]
    queues: Sequence[QueueDepth] = ()
    leased: Sequence[LeaseCount] = ()
    suspects: int = 0
    outbox_seconds: Mapping[str, float] = field(default_factory=dict)
    shards: Mapping[str, ShardFigures] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Central:
    queues: Sequence[QueueDepth]
    leased: Sequence[LeaseCount]
    suspects: int
    outbox_seconds: Mapping[str, float]


class MetricsReader:
    def __init__(self, databases: Databases) -> None:
        self._databases = databases
        self._cached: tuple[float, asyncio.Future[Figures]] | None = None
        # Finished jobs by status. Only the process that applied the end counts it.
        self.ended: Counter[str] = Counter()

    def count_ended(self, statuses: Sequence[str]) -> None:
        self.ended.update(statuses)

    async def figures(self) -> Figures:
        now = asyncio.get_running_loop().time()
        if self._cached is None or self._cached[0] <= now:
            self._cached = (now + CACHE_SECONDS, asyncio.ensure_future(self._read()))
        return await asyncio.shield(self._cached[1])

    async def _read(self) -> Figures:
        names = list(self._databases.shards)
        reading = asyncio.gather(*(self._read_shard(each) for each in names))
        central, shards = await self._read_central(), await reading
        found = {name: figures for name, figures in zip(names, shards, strict=True) if figures is not None}
        up = {self._databases.central.name: central is not None, **{name: name in found for name in names}}
        if central is None:
            return Figures(up=up, shards=found)
        return Figures(
            up=up,
            queues=central.queues,
            leased=central.leased,
            suspects=central.suspects,
            outbox_seconds=central.outbox_seconds,
            shards=found,
        )

    async def _read_central(self) -> _Central | None:
        try:
            async with self._databases.central.read() as tx:
                return _Central(
                    queues=await metrics.queues(tx),
                    leased=await metrics.leased(tx),
                    suspects=await metrics.suspects(tx, blocked_workers=SEVERAL_WORKERS),
                    outbox_seconds=await metrics.entry_ages(tx),
                )
        except DatabaseUnavailable:
            return None

    async def _read_shard(self, name: str) -> ShardFigures | None:
        try:
            async with self._databases.shard(name).read() as tx:
                return ShardFigures(
                    submission_seconds=await metrics.submission_age(tx),
                    undelivered_webhooks=await metrics.undelivered(tx),
                )
        except DatabaseUnavailable:
            return None
