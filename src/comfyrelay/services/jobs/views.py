"""Jobs and videos as their owner sees them: how far they are, what they wait for, and where their files can be had."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from comfyrelay.domain.payloads import Snapshot
from comfyrelay.domain.records.jobs import File, Job, LogLine, Video
from comfyrelay.domain.states import JobStatus, VideoStatus
from comfyrelay.domain.waiting import Reason, Waiting
from comfyrelay.errors import NotFound
from comfyrelay.services.databases import Databases
from comfyrelay.services.paging import Listed, listed
from comfyrelay.services.queue.waiting import WhyWaiting
from comfyrelay.storage.headers import servable_content_type
from comfyrelay.storage.objects import ObjectStore
from comfyrelay.store.central import dispatches, library
from comfyrelay.store.tenant import history, jobs, media

AT_ONCE = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputView:
    file: File
    filename: str
    url: str


@dataclass(frozen=True, kw_only=True, slots=True)
class JobView:
    """`waiting` is told of one job that is asked for, not in lists: it takes several queries. `seed` is that of every
    attempt: it was drawn, or given, when the job was accepted."""

    job: Job
    seed: int | None = None
    progress: Mapping[str, Any] | None = None
    waiting: Waiting | None = None
    outputs: Sequence[OutputView] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoView:
    video: Video
    progress: Mapping[str, Any] | None
    error: str | None
    original_file_url: str | None
    processed_file_url: str | None


class Views:
    def __init__(self, databases: Databases, objects: ObjectStore, waiting: WhyWaiting, *, ttl_seconds: float) -> None:
        self._databases = databases
        self._objects = objects
        self._waiting = waiting
        self._ttl_seconds = ttl_seconds

    async def plain_job(self, tenant_id: str, job_id: str) -> Job:
        async with (await self._databases.pool_of(tenant_id)).read() as tx:
            job = await jobs.get(tx, tenant_id, job_id)
        if job is None:
            raise NotFound(f"There is no job {job_id!r}.")
        return job

    async def job(self, tenant_id: str, job_id: str) -> JobView:
        return await self.of_job(await self.plain_job(tenant_id, job_id))

    async def of_job(self, job: Job) -> JobView:
        [view] = await self._of_jobs(job.tenant_id, [job])
        return replace(view, waiting=await self._why_waiting(job))

    async def jobs(
        self,
        tenant_id: str,
        *,
        status: JobStatus | None = None,
        batch_id: str | None = None,
        no_batch: bool = False,
        search: str | None = None,
        before_id: str | None = None,
        limit: int,
    ) -> Listed[JobView]:
        """Newest first."""
        async with (await self._databases.pool_of(tenant_id)).read() as tx:
            found = await jobs.listed(
                tx,
                tenant_id,
                status=status,
                batch_id=batch_id,
                no_batch=no_batch,
                search=search,
                before_id=before_id,
                limit=limit + 1,
            )
        page = listed(found, lambda each: each.id, limit=limit)
        return page.holding(await self._of_jobs(tenant_id, page.items))

    async def job_with_snapshot(self, tenant_id: str, job_id: str) -> tuple[Job, Snapshot]:
        """A job and what it runs."""
        job = await self.plain_job(tenant_id, job_id)
        async with (await self._databases.pool_of(tenant_id)).read() as tx:
            payloads = await jobs.payloads(tx, [job.id])
        return job, Snapshot.from_json(payloads[job.id])

    async def snapshots(self, tenant_id: str, *, workflow_id: int) -> AsyncIterator[Snapshot]:
        """What the jobs of a workflow run, newest first."""
        pool, before = await self._databases.pool_of(tenant_id), None
        while True:
            async with pool.read() as tx:
                found = await jobs.listed(tx, tenant_id, before_id=before, limit=AT_ONCE)
                of_workflow = [each.id for each in found if each.workflow_id == workflow_id]
                payloads = await jobs.payloads(tx, of_workflow) if of_workflow else {}
            for each in payloads.values():
                yield Snapshot.from_json(each)
            if len(found) < AT_ONCE:
                return
            before = found[-1].id

    async def logs(self, tenant_id: str, job_id: str, *, after_id: int, limit: int) -> Listed[LogLine]:
        """What the workers printed, oldest first."""
        await self.plain_job(tenant_id, job_id)
        async with (await self._databases.pool_of(tenant_id)).read() as tx:
            found = await history.log_page(tx, tenant_id, job_id, after_id=after_id, limit=limit + 1)
        return listed(found, lambda each: each.id, limit=limit)

    async def video(self, tenant_id: str, video_id: str) -> VideoView:
        async with (await self._databases.pool_of(tenant_id)).read() as tx:
            found = await media.video(tx, tenant_id, video_id)
        if found is None:
            raise NotFound(f"There is no video {video_id!r}.")
        [view] = await self._of_videos(tenant_id, [found])
        return view

    async def videos(self, tenant_id: str, *, before_id: str | None = None, limit: int) -> Listed[VideoView]:
        """Newest first."""
        async with (await self._databases.pool_of(tenant_id)).read() as tx:
            found = await media.video_page(tx, tenant_id, before_id=before_id, limit=limit + 1)
        page = listed(found, lambda each: each.id, limit=limit)
        return page.holding(await self._of_videos(tenant_id, page.items))

    async def _why_waiting(self, job: Job) -> Waiting | None:
        if job.status not in {JobStatus.QUEUED, JobStatus.PAUSED}:
            return None
        if job.status == JobStatus.PAUSED and (held := await self._why_held(job)) is not None:
            return Waiting(reason=Reason.HELD, text=held)
        try:
            return await self._waiting.of_job(job.tenant_id, job.id)
        except NotFound:
            # it was accepted this moment, and is on its way to the queue
            return None

    async def _why_held(self, job: Job) -> str | None:
        if job.batch_id is None:
            return None
        async with (await self._databases.pool_of(job.tenant_id)).read() as tx:
            batch = await media.batch(tx, job.tenant_id, id_=job.batch_id)
        return batch.held_text if batch is not None else None

    async def _of_jobs(self, tenant_id: str, found: Sequence[Job]) -> list[JobView]:
        named = {file_id for job in found for file_id in (job.input_file_id, job.output_file_id) if file_id}
        files = await self._files(tenant_id, named)
        running = [each.id for each in found if each.status == JobStatus.PROCESSING]
        nameless = {each.effect_id for each in found if each.output_file_id and each.effect_id is not None}
        progress, slugs = await self._from_queue(tenant_id, running, nameless)
        seeds = await self._seeds(tenant_id, [each.id for each in found])
        views = []
        for job in found:
            output = files.get(job.output_file_id or "")
            source = files.get(job.input_file_id or "")
            subject = _stem(source) or slugs.get(job.effect_id or 0, "job")
            outputs = [await self._output(output, f"{subject}-{job.id[-8:]}")] if output else []
            views.append(JobView(job=job, seed=seeds[job.id], progress=progress.get(job.id), outputs=outputs))
        return views

    async def _seeds(self, tenant_id: str, job_ids: Sequence[str]) -> dict[str, int | None]:
        if not job_ids:
            return {}
        async with (await self._databases.pool_of(tenant_id)).read() as tx:
            payloads = await jobs.payloads(tx, job_ids)
        known = {job_id: Snapshot.from_json(payload).seed for job_id, payload in payloads.items()}
        # one may have been deleted just now
        return {job_id: known.get(job_id) for job_id in job_ids}

    async def _of_videos(self, tenant_id: str, found: Sequence[Video]) -> list[VideoView]:
        named = {file_id for video in found for file_id in (video.original_file_id, video.processed_file_id) if file_id}
        files = await self._files(tenant_id, named)
        running = [each.job_id for each in found if each.status == VideoStatus.PROCESSING and each.job_id]
        progress, _ = await self._from_queue(tenant_id, running, ())
        return [await self._of_video(each, files, progress.get(each.job_id or "")) for each in found]

    async def _of_video(self, video: Video, files: Mapping[str, File], progress: Any) -> VideoView:
        original, processed = files.get(video.original_file_id or ""), files.get(video.processed_file_id or "")
        subject = video.title or _stem(original) or "video"
        details = video.processing_details or {}
        return VideoView(
            video=video,
            progress=progress,
            error=details.get("error"),
            original_file_url=await self._url(original, original.original_filename or subject) if original else None,
            processed_file_url=(await self._output(processed, f"{subject}-{video.id[-8:]}")).url if processed else None,
        )

    async def _files(self, tenant_id: str, ids: Iterable[str]) -> dict[str, File]:
        wanted = list(ids)
        if not wanted:
            return {}
        async with (await self._databases.pool_of(tenant_id)).read() as tx:
            return await media.files_of(tx, tenant_id, wanted)

    async def _from_queue(
        self, tenant_id: str, running: Sequence[str], effect_ids: Iterable[int]
    ) -> tuple[dict[str, Any], dict[int, str]]:
        wanted = list(effect_ids)
        if not running and not wanted:
            return {}, {}
        async with self._databases.central.read() as tx:
            progress = await dispatches.progress_of(tx, [(tenant_id, each) for each in running]) if running else {}
            return progress, await library.slugs(tx, wanted) if wanted else {}

    async def _output(self, file: File, name: str) -> OutputView:
        filename = f"{name}{PurePosixPath(file.path).suffix}"
        return OutputView(file=file, filename=filename, url=await self._url(file, filename))

    async def _url(self, file: File, filename: str) -> str:
        return await self._objects.sign_download(
            file.path,
            ttl_seconds=self._ttl_seconds,
            filename=filename,
            content_type=servable_content_type(file.mime_type),
        )


def _stem(file: File | None) -> str | None:
    return PurePosixPath(file.original_filename).stem if file is not None and file.original_filename else None
