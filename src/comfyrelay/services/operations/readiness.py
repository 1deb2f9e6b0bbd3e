"""Check that the databases are reachable, current and writable, and that object storage is available."""

import asyncio
from dataclasses import dataclass, field

import structlog

from comfyrelay.errors import ComfyRelayError, NotReady
from comfyrelay.services.databases import Databases
from comfyrelay.services.timed_cache import TimedCache
from comfyrelay.storage.objects import ObjectStore
from comfyrelay.store import migrate
from comfyrelay.store.database import Database
from comfyrelay.store.migrate import Schema

log = structlog.get_logger(__name__)

TIMEOUT_SECONDS = 3.0
STORAGE_SECONDS = 3.0
# The result is cached, because the endpoint needs no authentication.
CACHE_SECONDS = 1.0
# Comparing a schema takes longer than the other checks, and servers also compare it at startup.
SCHEMA_SECONDS = 60.0
STORAGE = "storage"
OTHER_SCHEMA = "The schema belongs to another version. Run `comfyrelay db status`."
OLD_SCHEMA = "The schema is out of date. Run `comfyrelay db upgrade`."
SCHEMA_PROBLEMS = frozenset({OTHER_SCHEMA, OLD_SCHEMA})


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadinessResult:
    """Problems by part, without healthy parts."""

    problems: dict[str, str] = field(default_factory=dict)
    is_ready: bool = True


class Readiness:
    def __init__(self, databases: Databases, objects: ObjectStore) -> None:
        self._databases = databases
        self._objects = objects
        self._cache = TimedCache(self._check)
        # By database: the time at which the next comparison of its schema is due.
        self._compare_at: dict[str, float] = {}

    async def check(self) -> ReadinessResult:
        """Return the problems that affect only some tenants. Raises `NotReady` if this process cannot serve any
        tenant."""
        result = await self._cache.get(seconds=CACHE_SECONDS)
        if not result.is_ready:
            raise NotReady(errors=result.problems)
        return result

    async def problems(self) -> dict[str, str]:
        """Return all problems by part, even if this process is not ready."""
        return (await self._cache.get(seconds=CACHE_SECONDS)).problems

    async def _check(self) -> ReadinessResult:
        schemas = self._databases.schemas()
        found = await asyncio.gather(
            *(self._find_problem(database, schema) for database, schema in schemas), self._problem_of_storage()
        )
        names = [*(database.name for database, _ in schemas), STORAGE]
        problems = {name: problem for name, problem in zip(names, found, strict=True) if problem is not None}
        central = self._databases.central.name
        # A shard that is down affects only its own tenants, so the server stays ready for the others.
        shards = self._databases.shards.keys()
        is_ready = not (central in problems or STORAGE in problems or shards <= problems.keys())
        return ReadinessResult(problems=problems, is_ready=is_ready)

    async def _find_problem(self, database: Database, schema: Schema) -> str | None:
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                revision = await migrate.current(database)
                # While servers are updated one by one, old servers continue with a schema that a newer server has
                # upgraded.
                is_current = revision == migrate.head(schema) or migrate.is_newer(revision, schema)
                if is_current and not await self._is_schema_expected(database, schema):
                    return OTHER_SCHEMA
                if is_current:
                    await migrate.check_writable(database)
        except TimeoutError:
            return f"The database did not answer within {TIMEOUT_SECONDS:g} seconds."
        except ComfyRelayError as error:
            return error.detail
        except Exception:
            log.warning("readiness.failed", database=database.name, exc_info=True)
            return "The database is unavailable."
        return None if is_current else OLD_SCHEMA

    async def _is_schema_expected(self, database: Database, schema: Schema) -> bool:
        now = asyncio.get_running_loop().time()
        if self._compare_at.get(database.name, now) <= now:
            if not await migrate.is_usable(database, schema):
                return False
            self._compare_at[database.name] = now + SCHEMA_SECONDS
        return True

    async def _problem_of_storage(self) -> str | None:
        try:
            async with asyncio.timeout(STORAGE_SECONDS):
                await self._objects.check()
        except TimeoutError:
            return f"Object storage did not answer within {STORAGE_SECONDS:g} seconds."
        except Exception as error:
            # Details are only logged, because they may contain a path or the name of a bucket.
            log.warning("readiness.failed", part=STORAGE, error=repr(error))
            return "Object storage is unavailable."
        return None
