"""Delete ended jobs with their outputs after some days, except starred outputs and outputs in collections."""

from collections import defaultdict

import structlog

from comfyrelay.domain.bulk import BulkAction
from comfyrelay.errors import DatabaseUnavailable
from comfyrelay.services.databases import Databases
from comfyrelay.services.gallery.selection import OutputActions
from comfyrelay.services.jobs.bulk import DELETE_CHUNK, BulkActions
from comfyrelay.store.database import Database
from comfyrelay.store.tenant import retention
from comfyrelay.store.tenant.retention import OldJob

log = structlog.get_logger(__name__)


class OutputExpiry:
    def __init__(self, databases: Databases, actions: OutputActions, bulk: BulkActions) -> None:
        self._databases = databases
        self._actions = actions
        self._bulk = bulk
        # If `None`, jobs and outputs are kept forever.
        self.keep_days: float | None = None

    async def run_once(self) -> int:
        """Delete the old outputs of every reachable shard, and old jobs without outputs. Returns the number of old
        jobs.

        A job is kept as long as any of its outputs, and until its batch has ended.
        """
        if self.keep_days is None:
            return 0
        total = 0
        for name in self._databases.shards:
            try:
                with self._databases.watched(name):
                    total += await self._run(self._databases.shard(name), self.keep_days * 86400)
            except DatabaseUnavailable:
                log.info("expiry.shard_down", shard=name)
        if total:
            log.info("expiry.done", jobs=total)
        return total

    async def _run(self, shard: Database, older_than_seconds: float) -> int:
        total, after = 0, ""
        while True:
            # Pages are small, because an output is deleted even if it is starred after its page was read.
            async with shard.read() as tx:
                found = await retention.old_jobs(
                    tx, older_than_seconds=older_than_seconds, after_id=after, limit=DELETE_CHUNK
                )
            if not found:
                return total
            await self._delete(found)
            total, after = total + len(found), found[-1].id

    async def _delete(self, found: list[OldJob]) -> None:
        outputs: dict[str, list[str]] = defaultdict(list)
        without_outputs: dict[str, list[str]] = defaultdict(list)
        for job in found:
            if job.output_ids:
                outputs[job.tenant_id] += job.output_ids
            else:
                without_outputs[job.tenant_id].append(job.id)
        problems: list[str] = []
        for tenant_id, ids in outputs.items():
            problems += (await self._actions.delete(tenant_id, ids)).jobs.not_deleted
        for tenant_id, ids in without_outputs.items():
            problems += (await self._bulk.run(tenant_id, BulkAction.DELETE, ids=ids)).not_deleted
        if problems:
            log.warning("expiry.files_not_deleted", files=problems)
