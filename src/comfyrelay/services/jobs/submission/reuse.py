"""Reuse outputs: complete a job with a copy of the output of an equal job.

The copy is made before the job is written, so a crash may orphan it. Therefore the job's folder is first recorded for a
later check, which removes objects without a file row.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from comfyrelay.domain.ids import new_id, output_path, poster_path, preview_path
from comfyrelay.domain.payloads import JobPayload, StoredFile
from comfyrelay.domain.queue.settlement import Attempt
from comfyrelay.domain.queue.updates import MediaFacts, UploadedOutput
from comfyrelay.domain.records.jobs import NewJobRecord
from comfyrelay.errors import NotFound
from comfyrelay.services.jobs.removal import OnRemoved
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.storage.objects import ObjectStore
from comfyrelay.store.database import Database
from comfyrelay.store.tenant import retention
from comfyrelay.store.tenant.library import reuse
from comfyrelay.store.tenant.library.reuse import ReusableJob
from comfyrelay.store.tenant.retention import Stray

MAX_CONCURRENT_READS = 16
# Much longer than the largest submission takes.
STRAY_SECONDS = 6 * 3600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ReusedOutput:
    """The copy of an output, and the id of the job that made the original."""

    job_id: str
    output: UploadedOutput
    about: dict[str, Any] | None = None


# Gets the job, its batch label and its output; returns the data to store with the attempt.
OnReused = Callable[[NewJobRecord, str | None, UploadedOutput], Awaitable[dict[str, Any] | None]]


class Reuse:
    def __init__(
        self,
        objects: ObjectStore,
        *,
        stray_seconds: float,
        stage_of: Callable[[int], str] | None = None,
        on_reused: OnReused | None = None,
        on_removed: OnRemoved | None = None,
    ) -> None:
        """Every submission has ended `stray_seconds` after its start. `stage_of` overrides the requested stage.
        `on_reused` must not fail; `on_removed` removes the files that it made."""
        self._objects = objects
        self._stage_of = stage_of
        self._on_reused = on_reused
        self._on_removed = on_removed
        self._stray_seconds = stray_seconds
        self._limit = asyncio.Semaphore(MAX_CONCURRENT_READS)

    async def hash_files(self, files: Mapping[str, StoredFile]) -> dict[str, StoredFile]:
        """Add content hashes, except to files that are not uploaded yet."""
        found = await asyncio.gather(*(self._hash_file(file) for file in files.values()))
        return {each.id: each for each in found}

    async def copy_outputs(
        self, shard: Database, new: Sequence[NewJobRecord], *, batch_label: str | None = None
    ) -> dict[str, ReusedOutput]:
        """Copy outputs of equal completed jobs; return them by new job. Jobs of another stage are never equal: a
        simulator's output must not pass for one of ComfyUI."""
        wanted = {each.fingerprint for each in new if each.fingerprint is not None}
        if not wanted:
            return {}
        async with shard.read() as tx:
            made = await reuse.made(tx, new[0].tenant_id, wanted)
        matched = [(job, found) for job in new if (found := made.get(self._reuse_key(job))) is not None]
        if not matched:
            return {}
        strays = [Stray(job_id=job.id, tenant_id=job.tenant_id) for job, _ in matched]
        await shard.run(
            TransactionStep.REUSE, lambda tx: retention.write_stray(tx, strays, after_seconds=self._stray_seconds)
        )
        copied = await asyncio.gather(*(self._copy_output(job, source, batch_label) for job, source in matched))
        return {job.id: each for (job, _), each in zip(matched, copied, strict=True) if each is not None}

    def _reuse_key(self, job: NewJobRecord) -> tuple[str, str]:
        stage = self._stage_of(job.workflow_id) if self._stage_of is not None else job.stage
        return job.fingerprint or "", stage

    async def discard(self, reused: Mapping[str, ReusedOutput]) -> None:
        """Remove files of jobs that were not written, because they were refused or an equal request came first."""
        made = [
            Attempt(job_id=job_id, epoch=1, tenant_id="", number=1, worker_id=None, started_at=None, about=each.about)
            for job_id, each in reused.items()
        ]
        if made and self._on_removed is not None:
            await self._on_removed(made)

    async def _copy_output(
        self, job: NewJobRecord, source: ReusableJob, batch_label: str | None
    ) -> ReusedOutput | None:
        payload, file = JobPayload.from_json(job.input_payload), source.file
        file_id = new_id()
        path = output_path(file_id, tenant_id=job.tenant_id, job_id=job.id, extension=payload.output_extension)
        async with self._limit:
            try:
                copy = await self._objects.copy(file.path, path)
                previews = await self._copy_previews(source, path)
            except NotFound:
                # removed just now: run the job
                return None
        output = UploadedOutput(
            file_id=file_id,
            path=path,
            size=copy.size,
            mime_type=file.mime_type,
            sha256=file.content_hash,
            metadata=source.metadata,
            media=replace(previews, width=file.width, height=file.height, seconds=file.seconds),
        )
        about = await self._on_reused(job, batch_label, output) if self._on_reused is not None else None
        return ReusedOutput(job_id=source.job_id, output=output, about=about)

    async def _copy_previews(self, source: ReusableJob, path: str) -> MediaFacts:
        """Copy poster and preview. If missing, they may be drawn later."""
        file = source.file
        if file.poster is not None:
            await self._objects.copy(poster_path(file.path, file.poster), poster_path(path, file.poster))
        if file.preview is not None:
            await self._objects.copy(preview_path(file.path, file.preview), preview_path(path, file.preview))
        return MediaFacts(poster=file.poster, preview=file.preview, undrawn=source.is_undrawn)

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
