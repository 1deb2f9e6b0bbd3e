"""The central database and the tenant pools, and what is known of their health."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime

import structlog

from comfyrelay.clock import utc_now
from comfyrelay.errors import ConfigurationError, NotFound, PoolUnavailable, SchemaOutOfDate
from comfyrelay.settings import Settings
from comfyrelay.store import migrate
from comfyrelay.store.central import tenants
from comfyrelay.store.database import Database
from comfyrelay.store.migrate import Schema

log = structlog.get_logger(__name__)

# For how long a pool that could not be reached is left alone before somebody tries again.
DOWN_SECONDS = 5.0
# How often a start asks whether a database is up by now.
ASK_SECONDS = 1.0


class Databases:
    def __init__(self, central: Database, pools: Mapping[str, Database]) -> None:
        self.central = central
        self.pools = dict(pools)
        self._down_until: dict[str, float] = {}
        # A tenant never moves, so where it lives need not be asked twice.
        self._pool_of: dict[str, str] = {}

    @classmethod
    def from_settings(cls, settings: Settings, *, clock: Callable[[], datetime] = utc_now) -> "Databases":
        size = settings.database_pool_size
        if not settings.pool_urls:
            raise ConfigurationError("There is no tenant pool: set COMFYRELAY_TENANT_POOLS.")
        if "central" in settings.pool_urls:
            raise ConfigurationError("A tenant pool cannot be named 'central': that is the central database.")
        return cls(
            Database("central", settings.central_url, pool_size=size, clock=clock),
            {name: Database(name, url, pool_size=size, clock=clock) for name, url in settings.pool_urls.items()},
        )

    async def close(self) -> None:
        for each in (self.central, *self.pools.values()):
            await each.close()

    def pool(self, name: str) -> Database:
        try:
            return self.pools[name]
        except KeyError:
            # Jobs of a pool that this process does not know must wait, not fail: another process may know it.
            raise PoolUnavailable(pool=name) from None

    async def pool_of(self, tenant_id: str) -> Database:
        return self.pool(await self.pool_name_of(tenant_id))

    async def pool_name_of(self, tenant_id: str) -> str:
        if tenant_id not in self._pool_of:
            async with self.central.read() as tx:
                tenant = await tenants.get(tx, tenant_id)
            if tenant is None:
                raise NotFound(f"There is no tenant {tenant_id!r}.")
            self._pool_of[tenant_id] = tenant.db_pool
        return self._pool_of[tenant_id]

    def down(self) -> list[str]:
        """Pools known to be down: their jobs are not handed out."""
        now = asyncio.get_running_loop().time()
        return sorted(name for name, until in self._down_until.items() if until > now)

    @contextmanager
    def watched(self, name: str) -> Iterator[None]:
        """Learn from what happens inside whether the pool can be reached."""
        try:
            yield
        except PoolUnavailable as error:
            if name not in self._down_until:
                log.warning("pool.down", pool=name, why=error.detail, cause=str(error.__cause__ or ""))
            self._down_until[name] = asyncio.get_running_loop().time() + DOWN_SECONDS
            raise
        if self._down_until.pop(name, None) is not None:
            log.info("pool.up", pool=name)

    def schemas(self) -> list[tuple[Database, Schema]]:
        return [(self.central, Schema.CENTRAL), *((pool, Schema.TENANT) for pool in self.pools.values())]

    async def upgrade(self) -> dict[str, tuple[str | None, str]]:
        """Bring every schema up; returns the revisions before and after by database."""
        return {each.name: await migrate.upgrade(each, schema) for each, schema in self.schemas()}

    async def wait(self, seconds: float) -> None:
        """Until every database answers: one that recovers from a crash takes its time. `PoolUnavailable` after that."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + seconds
        for each, _ in self.schemas():
            is_waiting = False
            while True:
                try:
                    await migrate.current(each)
                except PoolUnavailable as error:
                    if clock() >= deadline:
                        raise
                    if not is_waiting:
                        left = round(deadline - clock(), 1)
                        log.warning("database.waiting", database=each.name, why=error.detail, at_most_seconds=left)
                    is_waiting = True
                    await asyncio.sleep(min(ASK_SECONDS, max(0.0, deadline - clock())))
                else:
                    break
            if is_waiting:
                log.info("database.up", database=each.name)

    async def revisions(self) -> dict[str, tuple[str | None, str]]:
        """By database, the revision it has and the one it should have."""
        return {each.name: (await migrate.current(each), migrate.head(schema)) for each, schema in self.schemas()}

    async def require_current(self) -> None:
        found = await self.revisions()
        for each, schema in self.schemas():
            migrate.require_known(found[each.name][0], schema, each.name)
        behind = [name for name, (has, should) in found.items() if has != should]
        if behind:
            raise SchemaOutOfDate(f"The schema of {', '.join(behind)} is out of date: run `comfyrelay db upgrade`.")
