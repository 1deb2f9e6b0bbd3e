"""Compare the revenue from jobs with the cost of machines, by effect, tenant or day."""

import asyncio
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum

from comfyrelay.protocol.admin.revenue import Revenue
from comfyrelay.services.databases import Databases
from comfyrelay.store.central import catalogue, tenants
from comfyrelay.store.central.autoscaling import usage
from comfyrelay.store.central.autoscaling.usage import UsedTime
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant import ledger

DAYS = 30
OWN_WORKFLOWS = "own workflows"


class RevenueGrouping(StrEnum):
    EFFECT = "effect"
    TENANT = "tenant"
    DAY = "day"


_COLUMNS = {RevenueGrouping.EFFECT: "effect_id", RevenueGrouping.TENANT: "tenant_id", RevenueGrouping.DAY: "day"}


class RevenueReports:
    def __init__(self, databases: Databases, *, token_value: float | None) -> None:
        """`token_value` is the value of a token in money, if known."""
        self._databases = databases
        self._token_value = token_value

    async def report(
        self, by: RevenueGrouping, *, first: date | None = None, last: date | None = None
    ) -> list[Revenue]:
        """Return the revenue between two days, inclusive. The default is the last 30 days."""
        column = _COLUMNS[by]
        async with self._databases.central.read() as tx:
            last = last or (await tx.now()).astimezone(UTC).date()
            first = first or last - timedelta(days=DAYS - 1)
            costs = await usage.cost_by(tx, column, first_day=first.isoformat(), last_day=last.isoformat())
        sums = await asyncio.gather(*(self._paid(shard, column, first, last) for shard in self._databases.shards))
        paid: dict[str, tuple[int, int]] = {}
        for found in sums:
            for key, (jobs, tokens) in found.items():
                before = paid.get(key, (0, 0))
                paid[key] = (before[0] + jobs, before[1] + tokens)
        keys = sorted(costs.keys() | paid.keys())
        async with self._databases.central.read() as tx:
            names = await _names(tx, by, keys)
        return [self._row(names.get(key, key), paid.get(key, (0, 0)), costs.get(key, UsedTime())) for key in keys]

    async def _paid(self, shard: str, column: str, first: date, last: date) -> dict[str, tuple[int, int]]:
        begins = datetime.combine(first, time(), UTC)
        ends = datetime.combine(last + timedelta(days=1), time(), UTC)
        async with self._databases.shard(shard).read() as tx:
            return await ledger.revenue_by(tx, column, begins=begins, ends=ends)

    def _row(self, name: str, paid: tuple[int, int], used: UsedTime) -> Revenue:
        jobs, tokens = paid
        revenue = None if self._token_value is None else tokens * self._token_value
        return Revenue(
            name=name,
            jobs=jobs,
            tokens=tokens,
            revenue=revenue,
            gpu_seconds=used.seconds,
            unpriced_seconds=used.unpriced_seconds,
            cost=used.cost,
        )


async def _names(tx: Tx, by: RevenueGrouping, keys: list[str]) -> dict[str, str]:
    if by is RevenueGrouping.TENANT:
        return await tenants.emails_by_tenant(tx, keys)
    if by is RevenueGrouping.EFFECT:
        slugs = await catalogue.effect_slugs(tx, {int(key) for key in keys})
        return {"0": OWN_WORKFLOWS} | {str(id_): slug for id_, slug in slugs.items()}
    return {}
