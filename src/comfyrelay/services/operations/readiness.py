"""Whether this process can serve: its databases answer, are up to date and take changes, and so does object storage."""

import asyncio
from dataclasses import dataclass, field

import structlog

from comfyrelay.errors import ComfyRelayError, NotReady
from comfyrelay.services.databases import Databases
from comfyrelay.storage.objects import ObjectStore
from comfyrelay.store import migrate
from comfyrelay.store.database import Database
from comfyrelay.store.migrate import Schema

log = structlog.get_logger(__name__)

TIMEOUT_SECONDS = 3.0
# Anybody may ask, so asking often must not cost more than asking once.
REMEMBER_SECONDS = 1.0
STORAGE = "storage"


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """By part, what is wrong with it; nothing is said of parts that are well."""

    problems: dict[str, str] = field(default_factory=dict)
    is_ready: bool = True


class Readiness:
    def __init__(self, databases: Databases, objects: ObjectStore) -> None:
        self._databases = databases
        self._objects = objects
        self._asked: tuple[float, asyncio.Future[Checked]] | None = None

    async def check(self) -> Checked:
        """What is wrong; `NotReady` when nothing can be served because of it."""
        now = asyncio.get_running_loop().time()
        if self._asked is None or self._asked[0] <= now:
            self._asked = (now + REMEMBER_SECONDS, asyncio.ensure_future(self._check()))
        checked = await asyncio.shield(self._asked[1])
        if not checked.is_ready:
            raise NotReady(errors=checked.problems)
        return checked

    async def _check(self) -> Checked:
        schemas = self._databases.schemas()
        found = await asyncio.gather(
            *(self._problem_of(each, schema) for each, schema in schemas), self._problem_of_storage()
        )
        names = [*(each.name for each, _ in schemas), STORAGE]
        problems = {name: problem for name, problem in zip(names, found, strict=True) if problem is not None}
        central = self._databases.central.name
        # A shard that is down hurts its own tenants only: the others must not lose their server over it.
        shards = self._databases.shards.keys()
        is_ready = not (central in problems or STORAGE in problems or shards <= problems.keys())
        return Checked(problems=problems, is_ready=is_ready)

    async def _problem_of(self, database: Database, schema: Schema) -> str | None:
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                revision = await migrate.current(database)
                is_current = revision == migrate.head(schema)
                if is_current:
                    await migrate.check_writable(database)
        except TimeoutError:
            return f"The database did not answer within {TIMEOUT_SECONDS:g} seconds."
        except ComfyRelayError as error:
            return error.detail
        except Exception:
            log.warning("readiness.failed", database=database.name, exc_info=True)
            return "The database cannot be used."
        return None if is_current else "The schema is out of date: run `comfyrelay db upgrade`."

    async def _problem_of_storage(self) -> str | None:
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await self._objects.check()
        except TimeoutError:
            return f"Object storage did not answer within {TIMEOUT_SECONDS:g} seconds."
        except Exception as error:
            # why exactly is for the log: a message may hold a path or the name of a bucket
            log.warning("readiness.failed", part=STORAGE, error=repr(error))
            return "Object storage cannot be used."
        return None
