"""Reuse outputs: complete a job with copies of the outputs of an equal job.

The copies are made before the job is written, so a crash may orphan them. A check of the job's folder is therefore
scheduled first, which later removes objects without a file row.
"""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from comfyrelay.domain.ids import new_id, output_path, poster_path, preview_path
from comfyrelay.domain.payloads import StoredFile
from comfyrelay.domain.queue.settlement import Attempt
from comfyrelay.domain.queue.updates import MediaFacts, UploadedOutput
from comfyrelay.domain.records.jobs import NewJobRecord
from comfyrelay.errors import NotFound
from comfyrelay.services.hooks import Hooks
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.storage.objects import ObjectStore
from comfyrelay.store.database import Database
from comfyrelay.store.tenant import retention
from comfyrelay.store.tenant.library import reuse
from comfyrelay.store.tenant.library.reuse import ReusableFile, ReusableJob
from comfyrelay.store.tenant.retention import OrphanSearch

MAX_CONCURRENT_READS = 16
# The check runs after this time, which is much longer than any submission takes.
ORPHAN_SEARCH_SECONDS = 6 * 3600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ReusedOutputs:
    """Copies of the outputs of another job, and the id of that job."""

    job_id: str
    outputs: Sequence[UploadedOutput]
    about: dict[str, Any] | None = None


class Reuse:
    def __init__(self, objects: ObjectStore, hooks: Hooks) -> None:
        self._objects = objects
        self._hooks = hooks
        self._limit = asyncio.Semaphore(MAX_CONCURRENT_READS)

    async def hash_files(self, files: Mapping[str, StoredFile]) -> dict[str, StoredFile]:
        """Add content hashes, except to files that are not uploaded yet."""
        hashed = await asyncio.gather(*(self._hash_file(file) for file in files.values()))
        return {file.id: file for file in hashed}

    async def copy_outputs(
        self, shard: Database, new: Sequence[NewJobRecord], *, batch_label: str | None = None
    ) -> dict[str, ReusedOutputs]:
        """Copy the outputs of equal completed jobs, and return the copies by the id of the new job.

        Jobs of another stage are never equal, because a simulator's output must not pass for ComfyUI's.
        """
        wanted = {job.fingerprint for job in new if job.fingerprint is not None}
        if not wanted:
            return {}
        async with shard.read() as tx:
            reusable = await reuse.reusable_jobs(tx, new[0].tenant_id, wanted)
        stage_of = self._hooks.stage_of
        matched = []
        for job in new:
            stage = stage_of(job.workflow_id) if stage_of is not None else job.stage
            if (source := reusable.get((job.fingerprint or "", stage))) is not None:
                matched.append((job, source))
        if not matched:
            return {}
        searches = [OrphanSearch(job_id=job.id, tenant_id=job.tenant_id) for job, _ in matched]
        await shard.run(
            TransactionStep.REUSE,
            lambda tx: retention.schedule_orphan_searches(tx, searches, after_seconds=ORPHAN_SEARCH_SECONDS),
        )
        copied = await asyncio.gather(*(self._copy_outputs(job, source, batch_label) for job, source in matched))
        return {job.id: outputs for (job, _), outputs in zip(matched, copied, strict=True) if outputs is not None}

    async def discard(self, reused: Mapping[str, ReusedOutputs]) -> None:
        """Remove the copies of jobs that were not written, because they were refused or an equal request came first."""
        attempts = [
            Attempt(job_id=job_id, epoch=1, tenant_id="", number=1, worker_id=None, started_at=None, about=found.about)
            for job_id, found in reused.items()
        ]
        if attempts and self._hooks.on_removed is not None:
            await self._hooks.on_removed(attempts)

    async def _copy_outputs(
        self, job: NewJobRecord, source: ReusableJob, batch_label: str | None
    ) -> ReusedOutputs | None:
        outputs = []
        for output in source.outputs:
            copied = await self._copy_output(job, output)
            if copied is None:
                # The output has just been removed, so run the job.
                return None
            outputs.append(copied)
        on_reused = self._hooks.on_reused
        about = await on_reused(job, batch_label, outputs) if on_reused is not None else None
        return ReusedOutputs(job_id=source.job_id, outputs=outputs, about=about)

    async def _copy_output(self, job: NewJobRecord, source: ReusableFile) -> UploadedOutput | None:
        file, file_id = source.file, new_id()
        extension = PurePosixPath(file.path).suffix
        path = output_path(file_id, tenant_id=job.tenant_id, job_id=job.id, extension=extension)
        async with self._limit:
            try:
                copy = await self._objects.copy(file.path, path)
                previews = await self._copy_previews(source, path)
            except NotFound:
                return None
        return UploadedOutput(
            file_id=file_id,
            path=path,
            size=copy.size,
            mime_type=file.mime_type,
            sha256=file.content_hash,
            metadata=source.metadata,
            media=replace(previews, width=file.width, height=file.height, seconds=file.seconds),
        )

    async def _copy_previews(self, source: ReusableFile, path: str) -> MediaFacts:
        """Copy the poster and the preview. Missing ones may be drawn later."""
        file = source.file
        if file.poster is not None:
            await self._objects.copy(poster_path(file.path, file.poster), poster_path(path, file.poster))
        if file.preview is not None:
            await self._objects.copy(preview_path(file.path, file.preview), preview_path(path, file.preview))
        return MediaFacts(poster=file.poster, preview=file.preview, undrawn=source.is_poster_due)

    async def _hash_file(self, file: StoredFile) -> StoredFile:
        if file.content_hash is not None:
            return file
        digest = hashlib.sha256()
        async with self._limit:
            try:
                async for piece in self._objects.stream(file.path):
                    await asyncio.to_thread(digest.update, piece)
            except NotFound:
                return file
        return replace(file, content_hash=digest.hexdigest())
