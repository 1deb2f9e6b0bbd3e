"""Draw pending posters: posters of inputs that a job has used, and posters of outputs that took too long.

The transaction that uses a file marks it as pending. A process claims a file for longer than drawing can take. If the
process dies, another process draws the poster again under the same name.
"""

import asyncio

import structlog

from comfyrelay.domain.ids import derived_paths
from comfyrelay.domain.queue.updates import NO_MEDIA_FACTS, MediaFacts
from comfyrelay.domain.records.jobs import FileRecord
from comfyrelay.errors import ConfigurationError, DatabaseUnavailable, InvalidInput, NotFound
from comfyrelay.services.context import DISK
from comfyrelay.services.databases import Databases
from comfyrelay.services.queue.posters import Posters
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.storage.objects import ObjectStore
from comfyrelay.store.database import Database
from comfyrelay.store.tenant.library import posters
from comfyrelay.store.tenant.removals import DRAW_SECONDS
from comfyrelay.wakeup import Wakeup

log = structlog.get_logger(__name__)

# Posters are drawn one by one, to leave processes free for outputs. The lease of a claim is long enough for all files.
CLAIM_SIZE = 5
FILE_SECONDS = 100.0


class PendingPosters:
    def __init__(self, databases: Databases, objects: ObjectStore, posters_: Posters) -> None:
        self._databases = databases
        self._objects = objects
        self._posters = posters_
        # Notified when files may be pending.
        self.wakeup = Wakeup()

    async def run_once(self) -> int:
        """Draw the pending posters of all shards, and return the number of files handled."""
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
                TransactionStep.DRAW_CLAIM, lambda tx: posters.claim(tx, limit=CLAIM_SIZE, lease_seconds=DRAW_SECONDS)
            )
            for file in due:
                await self._draw(shard, file)
            done += len(due)
            if len(due) < CLAIM_SIZE:
                return done

    async def _draw(self, shard: Database, file: FileRecord) -> None:
        try:
            async with asyncio.timeout(FILE_SECONDS):
                media = await self._make_poster(file)
        except Exception as error:
            # Storage may be unreachable. The file is retried when the claim expires.
            log.warning("poster.postponed", path=file.path, error=repr(error))
            return
        if not await shard.run(TransactionStep.DRAW_NOTE, lambda tx: posters.record(tx, file.id, media)):
            # The file was removed in the meantime.
            await self._objects.remove_many(derived_paths(file.path))

    async def _make_poster(self, file: FileRecord) -> MediaFacts:
        if file.disk != DISK:
            return NO_MEDIA_FACTS
        try:
            return await self._posters.of_stored(file.path, mime_type=file.mime_type)
        except (ConfigurationError, InvalidInput, NotFound) as error:
            log.info("poster.skipped", path=file.path, problem=error.detail)
            return NO_MEDIA_FACTS
