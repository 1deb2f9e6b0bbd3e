"""Reusing: a job whose equal is done already is answered with a copy of that one's output.

The copy is made before the job is written, as with every output, and may be the last step before a crash. So the job's
folder is first noted as one to be looked through later: what no file stands for then is removed.
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

AT_ONCE = 16
# Much longer than a submission takes, however many items it has.
STRAY_SECONDS = 6 * 3600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Reused:
    """The job whose output was copied, and the copy."""

    job_id: str
    output: UploadedOutput
    about: dict[str, Any] | None = None


# The job, the label of its batch, and its output; returns what is to be kept of it, as of a run.
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
        """A submission is over `stray_seconds` after it has begun. `stage_of` decides at which stage the jobs of a
        workflow run, whatever was asked for. `on_reused` must not fail; `on_removed` removes the files that it has
        made."""
        self._objects = objects
        self._stage_of = stage_of
        self._on_reused = on_reused
        self._on_removed = on_removed
        self._stray_seconds = stray_seconds
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def hash_files(self, files: Mapping[str, StoredFile]) -> dict[str, StoredFile]:
        """The same, with the hashes of their content; of those that are not there yet, without."""
        found = await asyncio.gather(*(self._hash_file(each) for each in files.values()))
        return {each.id: each for each in found}

    async def copy_outputs(
        self, shard: Database, new: Sequence[NewJobRecord], *, batch_label: str | None = None
    ) -> dict[str, Reused]:
        """By job, what it is answered with, for those whose equal is done and whose output is still there. What ran at
        another stage is not equal: what a simulator made there is no picture of ComfyUI's."""
        wanted = {each.fingerprint for each in new if each.fingerprint is not None}
        if not wanted:
            return {}
        async with shard.read() as tx:
            made = await reuse.made(tx, new[0].tenant_id, wanted)
        matched = [(job, found) for job in new if (found := made.get(self._likeness(job))) is not None]
        if not matched:
            return {}
        strays = [Stray(job_id=job.id, tenant_id=job.tenant_id) for job, _ in matched]
        await shard.run(
            TransactionStep.REUSE, lambda tx: retention.write_stray(tx, strays, after_seconds=self._stray_seconds)
        )
        copied = await asyncio.gather(*(self._copied(job, source, batch_label) for job, source in matched))
        return {job.id: each for (job, _), each in zip(matched, copied, strict=True) if each is not None}

    def _likeness(self, job: NewJobRecord) -> tuple[str, str]:
        stage = self._stage_of(job.workflow_id) if self._stage_of is not None else job.stage
        return job.fingerprint or "", stage

    async def discard(self, reused: Mapping[str, Reused]) -> None:
        """Of jobs that were not written after all: another request for the same was first, or they were refused."""
        made = [
            Attempt(job_id=job_id, epoch=1, tenant_id="", number=1, worker_id=None, started_at=None, about=each.about)
            for job_id, each in reused.items()
        ]
        if made and self._on_removed is not None:
            await self._on_removed(made)

    async def _copied(self, job: NewJobRecord, source: ReusableJob, batch_label: str | None) -> Reused | None:
        payload, file = JobPayload.from_json(job.input_payload), source.file
        file_id = new_id()
        path = output_path(file_id, tenant_id=job.tenant_id, job_id=job.id, extension=payload.output_extension)
        async with self._turn:
            try:
                copy = await self._objects.copy(file.path, path)
                beside = await self._copied_beside(source, path)
            except NotFound:
                # it was removed just now: the job runs
                return None
        output = UploadedOutput(
            file_id=file_id,
            path=path,
            size=copy.size,
            mime_type=file.mime_type,
            sha256=file.content_hash,
            metadata=source.metadata,
            media=replace(beside, width=file.width, height=file.height, seconds=file.seconds),
        )
        about = await self._on_reused(job, batch_label, output) if self._on_reused is not None else None
        return Reused(job_id=source.job_id, output=output, about=about)

    async def _copied_beside(self, source: ReusableJob, path: str) -> MediaFacts:
        """What is shown in its place; one that has nothing may get it later."""
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
        async with self._turn:
            try:
                async for piece in self._objects.stream(file.path):
                    await asyncio.to_thread(digest.update, piece)
            except NotFound:
                return file
        return replace(file, content_hash=digest.hexdigest())
