"""Posters of what has none yet: inputs, once a job has named them, and outputs that could not get one in time.

That a file is to get one is written with what makes it so. Whoever draws it claims it first for longer than that can
take; when that process dies, another draws it again, under the same names.
"""

import asyncio

import structlog

from comfyrelay.domain.ids import beside
from comfyrelay.domain.queue.updates import NOTHING_FOUND, MediaFacts
from comfyrelay.domain.records.jobs import FileRecord
from comfyrelay.errors import ConfigurationError, DatabaseUnavailable, InvalidInput, NotFound
from comfyrelay.services.databases import Databases
from comfyrelay.services.queue.posters import Posters
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.storage.objects import ObjectStore
from comfyrelay.store.database import Database
from comfyrelay.store.tenant.library import posters as drawing
from comfyrelay.store.tenant.removals import DRAW_SECONDS
from comfyrelay.wakeup import Wakeup

log = structlog.get_logger(__name__)

# One after the other, so that outputs find a free process: all of them together take no longer than their claim.
AT_ONCE = 5
FILE_SECONDS = 100.0


class PendingPosters:
    def __init__(self, databases: Databases, objects: ObjectStore, posters: Posters, *, disk: str) -> None:
        self._databases = databases
        self._objects = objects
        self._posters = posters
        self._disk = disk
        self._wakeup = Wakeup()

    def wakeup(self) -> None:
        """Files were used: there may be something to draw."""
        self._wakeup.notify()

    async def wait(self, seconds: float) -> None:
        """Until there may be something to draw."""
        await self._wakeup.wait(seconds)

    async def run_once(self) -> int:
        """Draw what is due, in every shard; returns how many files were looked at."""
        done = 0
        for name in self._databases.shards:
            try:
                with self._databases.watched(name):
                    done += await self._draw_due(self._databases.shard(name))
            except DatabaseUnavailable:
                log.info("poster.shard_down", shard=name)
        return done

    async def _draw_due(self, shard: Database) -> int:
        done = 0
        while True:
            due = await shard.run(
                TransactionStep.DRAW_CLAIM, lambda tx: drawing.claim(tx, limit=AT_ONCE, lease_seconds=DRAW_SECONDS)
            )
            for file in due:
                await self._draw(shard, file)
            done += len(due)
            if len(due) < AT_ONCE:
                return done

    async def _draw(self, shard: Database, file: FileRecord) -> None:
        try:
            async with asyncio.timeout(FILE_SECONDS):
                media = await self._made(file)
        except Exception as error:
            # storage is away, for one: it is tried again once its claim has run out
            log.warning("poster.postponed", path=file.path, error=repr(error))
            return
        if not await shard.run(TransactionStep.DRAW_NOTE, lambda tx: drawing.note(tx, file.id, media)):
            # it was removed meanwhile
            await self._objects.remove_many(beside(file.path))

    async def _made(self, file: FileRecord) -> MediaFacts:
        if file.disk != self._disk:
            return NOTHING_FOUND
        try:
            return await self._posters.of_stored(file.path, mime_type=file.mime_type)
        except (ConfigurationError, InvalidInput, NotFound) as error:
            log.info("poster.not_made", path=file.path, problem=error.detail)
            return NOTHING_FOUND
