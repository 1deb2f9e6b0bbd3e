"""Views of jobs and videos for their owner: progress, wait reason and URLs of files."""

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any

from comfyrelay.domain.gallery import main_prompt, prompt_placeholder
from comfyrelay.domain.payloads import JobPayload
from comfyrelay.domain.queue.customer_texts import progress_for_customer, waiting_for_customer
from comfyrelay.domain.queue.progress import STARTING_AGAIN
from comfyrelay.domain.queue.settlement import Event
from comfyrelay.domain.queue.states import CanceledBy, JobStatus, UnitStatus, VideoStatus
from comfyrelay.domain.queue.wait_reasons import Reason, Waiting
from comfyrelay.domain.records.jobs import FailedNode, FileRecord, JobRecord, LogLineRecord, VideoRecord
from comfyrelay.errors import Conflict, InvalidInput, NotFound
from comfyrelay.media_types import guess_media_type
from comfyrelay.protocol.jobs import JobInput
from comfyrelay.services.context import ServiceContext
from comfyrelay.services.databases import Databases
from comfyrelay.services.jobs.submission.rerun_offers import RerunOffers
from comfyrelay.services.jobs.views.media import MediaViews
from comfyrelay.services.jobs.views.overview import status_filter
from comfyrelay.services.paging import ResultPage, make_page
from comfyrelay.services.queue.control import require_job
from comfyrelay.services.queue.wait_reasons import WaitReasons
from comfyrelay.storage.headers import servable_content_type
from comfyrelay.store.central import catalogue, library
from comfyrelay.store.central.queue import dispatches
from comfyrelay.store.central.queue.dispatches import RunningDispatch
from comfyrelay.store.tenant import history, job_list, jobs, ledger
from comfyrelay.store.tenant.library import gallery, media

PAGE_SIZE = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputView:
    file: FileRecord
    # The number within its job, starting at 1.
    number: int
    filename: str
    url: str
    poster_url: str | None = None
    preview_url: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class JobView:
    """A job for its owner. `waiting` is not set in lists, because it needs several queries."""

    job: JobRecord
    # All attempts use the same seed.
    seed: int | None = None
    workflow_slug: str | None = None
    workflow_name: str | None = None
    # May be truncated.
    prompt: str | None = None
    input: JobInput | None = None
    progress: Mapping[str, Any] | None = None
    # Whether the job is leased, but its worker is still running another job.
    is_prefetched: bool = False
    # Set while a running job has a pending cancel request.
    cancel_requested_at: datetime | None = None
    canceled_by: CanceledBy | None = None
    # Whether the output was removed when its retention ended.
    is_expired: bool = False
    refunded_tokens: int = 0
    waiting: Waiting | None = None
    # The id of the retry.
    retried_as: str | None = None
    # Lists contain only the first output.
    outputs: Sequence[OutputView] = ()
    output_count: int = 0
    # The current price of running the job again. Not set in lists, because the input may have to be measured.
    offered_tokens: int | None = None

    @property
    def again_tokens(self) -> int:
        """The price of running the job again: for a retry, the price that the user accepted; otherwise, the current
        price."""
        if self.job.status in {JobStatus.FAILED, JobStatus.CANCELED}:
            return self.job.reserved_tokens
        return self.job.again_tokens if self.offered_tokens is None else self.offered_tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoView:
    video: VideoRecord
    progress: Mapping[str, Any] | None
    error: str | None
    original_file_url: str | None
    processed_file_url: str | None


class JobViews:
    def __init__(
        self, context: ServiceContext, wait_reasons: WaitReasons, media_views: MediaViews, offers: RerunOffers
    ) -> None:
        self._databases = context.databases
        self._users_are_owners = context.hooks.users_are_owners
        self._objects = context.objects
        self._ttl_seconds = context.settings.presigned_ttl_seconds
        self._wait_reasons = wait_reasons
        self._media = media_views
        self._offers = offers

    async def job_record(self, tenant_id: str, job_id: str) -> JobRecord:
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            return await require_job(tx, tenant_id, job_id)

    async def job(self, tenant_id: str, job_id: str) -> JobView:
        return await self.view_job(await self.job_record(tenant_id, job_id))

    async def view_job(self, job: JobRecord) -> JobView:
        [view] = await self.view_jobs(job.tenant_id, [job])
        waiting = await self._why_waiting(job, is_prefetched=view.is_prefetched)
        return replace(view, waiting=waiting, offered_tokens=await self._offered_tokens(job))

    async def _offered_tokens(self, job: JobRecord) -> int | None:
        if job.status != JobStatus.COMPLETED:
            return None
        try:
            offers = await self._offers.of(await self._databases.shard_of(job.tenant_id), [job])
        except (Conflict, InvalidInput):
            # The job cannot run again. A request to run it again returns the reason.
            return None
        return offers[job.id].tokens if job.id in offers else None

    async def jobs(
        self,
        tenant_id: str,
        *,
        status: JobStatus | UnitStatus | None = None,
        batch_id: str | None = None,
        no_batch: bool = False,
        expired: bool = False,
        workflow: str | None = None,
        search: str | None = None,
        metadata: Mapping[str, str] | None = None,
        oldest_first: bool = False,
        after_id: str | None = None,
        limit: int,
    ) -> ResultPage[JobView]:
        workflow_ids = await find_workflow_ids(self._databases, tenant_id, workflow)
        filter_ = None if status is None else await status_filter(self._databases, tenant_id, status)
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            found = await job_list.listed(
                tx,
                tenant_id,
                status_filter=filter_,
                batch_id=batch_id,
                no_batch=no_batch,
                expired=expired,
                workflow_ids=workflow_ids,
                search=search,
                metadata=metadata,
                oldest_first=oldest_first,
                after_id=after_id,
                limit=limit + 1,
            )
        page = make_page(found, limit=limit)
        return page.with_items(await self.view_jobs(tenant_id, page.items))

    async def file(self, tenant_id: str, file_id: str) -> OutputView:
        """Return a file of the tenant under its original name."""
        found = (await self._files(tenant_id, [file_id])).get(file_id)
        if found is None:
            raise NotFound("You have no such file.")
        return await self._output(found, _stem(found) or "file", number=1)

    async def job_with_payload(self, tenant_id: str, job_id: str) -> tuple[JobRecord, JobPayload]:
        job = await self.job_record(tenant_id, job_id)
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            payloads = await jobs.payloads(tx, [job.id])
        return job, JobPayload.from_json(payloads[job.id])

    async def metadata(self, tenant_id: str, job_ids: Collection[str]) -> dict[str, dict[str, str]]:
        """Return the metadata of jobs."""
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            return await job_list.metadata_of(tx, job_ids)

    async def output_facts(self, tenant_id: str, view: JobView) -> dict[str, Mapping[str, Any]]:
        """Return the metadata that the worker reported for each output, such as its node, by file id."""
        ids = [output.file.id for output in view.outputs]
        if not ids:
            return {}
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            found = await media.metadata_of(tx, tenant_id, ids)
        return {id_: about or {} for id_, about in found.items()}

    async def failed_node(self, view: JobView) -> FailedNode | None:
        """Return the node that failed, if the worker named it. Customers do not see the nodes of an effect."""
        job = view.job
        if job.status != JobStatus.FAILED or self.is_of_customer(job.effect_id):
            return None
        async with (await self._databases.shard_of(job.tenant_id)).read() as tx:
            return (await jobs.failed_nodes(tx, [job.id])).get(job.id)

    async def payloads(self, tenant_id: str, *, workflow_id: int) -> AsyncIterator[JobPayload]:
        """Yield the payloads of the jobs of a workflow, newest first."""
        shard, before = await self._databases.shard_of(tenant_id), None
        while True:
            async with shard.read() as tx:
                found = await job_list.listed(tx, tenant_id, after_id=before, limit=PAGE_SIZE)
                of_workflow = [job.id for job in found if job.workflow_id == workflow_id]
                payloads = await jobs.payloads(tx, of_workflow) if of_workflow else {}
            for payload in payloads.values():
                yield JobPayload.from_json(payload)
            if len(found) < PAGE_SIZE:
                return
            before = found[-1].id

    async def logs(
        self, tenant_id: str, job_id: str, *, after_id: int, limit: int, is_admin: bool = False
    ) -> ResultPage[LogLineRecord]:
        """Return log lines of a job's workers, oldest first. For jobs of an effect, only administrators can read
        them."""
        job = await self.job_record(tenant_id, job_id)
        if self.is_of_customer(job.effect_id) and not is_admin:
            return ResultPage(items=[])
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            found = await history.log_page(tx, tenant_id, job_id, after_id=after_id, limit=limit + 1)
        return make_page(found, limit=limit)

    async def history(self, tenant_id: str, job_id: str, *, after_seq: int, limit: int) -> ResultPage[Event]:
        """Return the events of a job, oldest first."""
        await self.job_record(tenant_id, job_id)
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            found = await history.event_page(tx, tenant_id, job_id, after_seq=after_seq, limit=limit + 1)
        return make_page(found, limit=limit, key=lambda event: event.seq)

    async def video(self, tenant_id: str, video_id: str) -> VideoView:
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            found = await media.video(tx, tenant_id, video_id)
        if found is None:
            raise NotFound(f"There is no video {video_id!r}.")
        [view] = await self._view_videos(tenant_id, [found])
        return view

    async def videos(self, tenant_id: str, *, before_id: str | None = None, limit: int) -> ResultPage[VideoView]:
        """Return the tenant's videos, newest first."""
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            found = await media.video_page(tx, tenant_id, before_id=before_id, limit=limit + 1)
        page = make_page(found, limit=limit)
        return page.with_items(await self._view_videos(tenant_id, page.items))

    async def _why_waiting(self, job: JobRecord, *, is_prefetched: bool) -> Waiting | None:
        if job.status not in {JobStatus.QUEUED, JobStatus.PAUSED} and not is_prefetched:
            return None
        if job.status == JobStatus.PAUSED and job.batch_id is not None:
            async with (await self._databases.shard_of(job.tenant_id)).read() as tx:
                batch = await media.batch(tx, job.tenant_id, id_=job.batch_id)
            if batch is not None and batch.held_text is not None:
                return Waiting(reason=Reason.HELD, text=batch.held_text)
        try:
            waiting = await self._wait_reasons.of_job(job.tenant_id, job.id)
            return waiting_for_customer(waiting) if self.is_of_customer(job.effect_id) else waiting
        except NotFound:
            # The job has just been accepted and is not in the queue yet.
            return None

    def is_of_customer(self, effect_id: int | None) -> bool:
        """Whether the user of a job does not own its graph."""
        return effect_id is not None and not self._users_are_owners

    async def view_jobs(self, tenant_id: str, found: Sequence[JobRecord]) -> list[JobView]:
        if not found:
            return []
        named = {file_id for job in found for file_id in (job.input_file_id, job.output_file_id) if file_id}
        made = [job.id for job in found if job.output_file_id is not None]
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            # A single job is returned with all its outputs.
            of_jobs = await gallery.of_jobs(tx, tenant_id, made) if made and len(found) == 1 else {}
            counts = await gallery.count_of_jobs(tx, tenant_id, made) if made and len(found) > 1 else {}
            named.update(file_id for numbers in of_jobs.values() for file_id in numbers)
            files = await media.files_of(tx, tenant_id, named) if named else {}
            read_payloads = jobs.listed_payloads if len(found) > 1 else jobs.payloads
            payloads = await read_payloads(tx, [job.id for job in found])
            unsuccessful = [job.id for job in found if job.status in {JobStatus.FAILED, JobStatus.CANCELED}]
            retries = await jobs.retries_of(tx, unsuccessful) if unsuccessful else {}
            refundable = [*unsuccessful, *(job.id for job in found if job.charged_tokens)]
            refunds = await ledger.refunds_of(tx, refundable) if refundable else {}
            canceled = [job.id for job in found if job.status == JobStatus.CANCELED]
            by_others = await history.canceled_by_others(tx, tenant_id, canceled) if canceled else set()
            without_output = {job.video_id for job in found if job.video_id and _has_lost_output(job, files)}
            videos = await media.videos_of(tx, tenant_id, without_output) if without_output else {}
        expired = {video.id for video in videos.values() if video.status == VideoStatus.EXPIRED}
        running = [job.id for job in found if job.status == JobStatus.PROCESSING]
        effect_ids = {job.effect_id for job in found if job.output_file_id and job.effect_id is not None}
        leased, slugs = await self._from_queue(tenant_id, running, effect_ids)
        async with self._databases.central.read() as tx:
            workflows = await catalogue.workflows_by_id(tx, {job.workflow_id for job in found})
        prompts = {workflow.id: prompt_placeholder(workflow.properties) for workflow in workflows.values()}
        views = []
        for job in found:
            first, count = counts.get(job.id, (1, 0))
            numbers = of_jobs.get(job.id) or {job.output_file_id or "": first}
            source = files.get(job.input_file_id or "")
            subject = _stem(source) or slugs.get(job.effect_id or 0, "job")
            workflow = workflows.get(job.workflow_id)
            # The job may have been deleted in the meantime, or its values may be too long for a list.
            payload = JobPayload.from_json(payloads[job.id]) if job.id in payloads else None
            dispatch = leased.get(job.id, dispatches.NOT_RUNNING)
            progress = dispatch.progress or (STARTING_AGAIN if _is_starting_again(job) else None)
            views.append(
                JobView(
                    job=job,
                    seed=payload.seed if payload else None,
                    workflow_slug=workflow.slug if workflow else None,
                    workflow_name=workflow.name if workflow else None,
                    prompt=main_prompt(payload, prompts.get(job.workflow_id)) if payload else None,
                    input=await self._input(payload, source),
                    progress=progress_for_customer(progress) if self.is_of_customer(job.effect_id) else progress,
                    is_prefetched=dispatch.is_prefetched,
                    cancel_requested_at=dispatch.cancel_requested_at,
                    canceled_by=_canceled_by(job, by_others),
                    is_expired=job.video_id in expired and _has_lost_output(job, files),
                    refunded_tokens=refunds.get(job.id, 0),
                    retried_as=retries.get(job.id),
                    outputs=[
                        await self._output(files[file_id], f"{subject}-{job.id[-8:]}", number=number)
                        for file_id, number in numbers.items()
                        if file_id in files
                    ],
                    output_count=count or len(files.keys() & numbers.keys()),
                )
            )
        return views

    async def _input(self, payload: JobPayload | None, source: FileRecord | None) -> JobInput | None:
        if source is not None:
            name = source.original_filename
            facts = await self._media.view_file(source)
            return JobInput(
                url=await self._url(source, name or "input"),
                mime_type=source.mime_type,
                name=name,
                poster_url=facts.poster_url,
            )
        asset = payload.primary_input if payload else None
        # Only user files have a media type. If no source was found, the user has deleted the file.
        if asset is None or asset.mime_type is not None:
            return None
        name = PurePosixPath(asset.path).name
        mime_type = servable_content_type(guess_media_type(name))
        url = await self._objects.sign_download(
            asset.path, ttl_seconds=self._ttl_seconds, filename=name, content_type=mime_type
        )
        return JobInput(url=url, mime_type=mime_type, name=name)

    async def _view_videos(self, tenant_id: str, found: Sequence[VideoRecord]) -> list[VideoView]:
        named = {file_id for video in found for file_id in (video.original_file_id, video.processed_file_id) if file_id}
        files = await self._files(tenant_id, named)
        running = [video.job_id for video in found if video.status == VideoStatus.PROCESSING and video.job_id]
        leased, _ = await self._from_queue(tenant_id, running, ())
        return [
            await self._view_video(video, files, leased.get(video.job_id or "", dispatches.NOT_RUNNING))
            for video in found
        ]

    async def _view_video(
        self, video: VideoRecord, files: Mapping[str, FileRecord], dispatch: RunningDispatch
    ) -> VideoView:
        original, processed = files.get(video.original_file_id or ""), files.get(video.processed_file_id or "")
        subject = video.title or _stem(original) or "video"
        return VideoView(
            video=video,
            progress=dispatch.progress if self._users_are_owners else progress_for_customer(dispatch.progress),
            error=(video.processing_details or {}).get("error"),
            original_file_url=await self._url(original, original.original_filename or subject) if original else None,
            processed_file_url=await self._url(processed, f"{subject}-{video.id[-8:]}{_suffix(processed)}")
            if processed
            else None,
        )

    async def _files(self, tenant_id: str, ids: Iterable[str]) -> dict[str, FileRecord]:
        wanted = list(ids)
        if not wanted:
            return {}
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            return await media.files_of(tx, tenant_id, wanted)

    async def _from_queue(
        self, tenant_id: str, running: Sequence[str], effect_ids: Iterable[int]
    ) -> tuple[dict[str, RunningDispatch], dict[int, str]]:
        wanted = list(effect_ids)
        if not running and not wanted:
            return {}, {}
        async with self._databases.central.read() as tx:
            leased = await dispatches.running_of(tx, tenant_id, running) if running else {}
            return leased, await library.slugs(tx, wanted) if wanted else {}

    async def _output(self, file: FileRecord, name: str, *, number: int) -> OutputView:
        filename = f"{name}{'' if number == 1 else f'-{number}'}{_suffix(file)}"
        facts = await self._media.view_file(file)
        return OutputView(
            file=file,
            number=number,
            filename=filename,
            url=await self._url(file, filename),
            poster_url=facts.poster_url,
            preview_url=facts.preview_url,
        )

    async def _url(self, file: FileRecord, filename: str) -> str:
        return await self._objects.sign_download(
            file.path,
            ttl_seconds=self._ttl_seconds,
            filename=filename,
            content_type=servable_content_type(file.mime_type),
        )


async def find_workflow_ids(databases: Databases, tenant_id: str, slug: str | None) -> list[int] | None:
    """Return the ids of the workflows with this slug; `None` without a slug, which means all workflows."""
    if slug is None:
        return None
    async with databases.central.read() as tx:
        return sorted(await catalogue.find_workflows(tx, tenant_id, slug=slug))


def _has_lost_output(job: JobRecord, files: Mapping[str, FileRecord]) -> bool:
    return job.output_file_id is not None and job.output_file_id not in files


def _is_starting_again(job: JobRecord) -> bool:
    """Whether a run of the job was lost, and the next run has not reported anything yet."""
    is_waiting_again = job.status == JobStatus.QUEUED and job.started_at is not None
    return is_waiting_again or (job.status == JobStatus.PROCESSING and job.attempts > 1)


def _canceled_by(job: JobRecord, by_others: Set[str]) -> CanceledBy | None:
    if job.status != JobStatus.CANCELED:
        return None
    return CanceledBy.ADMINISTRATOR if job.id in by_others else CanceledBy.USER


def _suffix(file: FileRecord) -> str:
    return PurePosixPath(file.path).suffix


def _stem(file: FileRecord | None) -> str | None:
    return PurePosixPath(file.original_filename).stem if file is not None and file.original_filename else None
