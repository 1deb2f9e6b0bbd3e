"""The prompts of a user: jobs that were submitted through ComfyUI's API, with their outputs."""

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from comfyrelay.domain.queue.states import JobStatus, shown_status
from comfyrelay.domain.records.jobs import FailedNode, FileRecord, JobRecord, PromptRecord
from comfyrelay.errors import Conflict, NotFound
from comfyrelay.services.databases import Databases
from comfyrelay.services.jobs.views.overview import status_filter
from comfyrelay.services.queue.control import JobControl
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.tenant import comfyui, jobs
from comfyrelay.store.tenant.library import gallery, media
from comfyrelay.text import is_storable

WAITING = (JobStatus.QUEUED, JobStatus.PAUSED)
RUNNING = (JobStatus.PROCESSING,)
ENDED = (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELED)
# The keys that ComfyUI's own nodes use for their outputs. Older workers do not report the key.
_KEYS = {"image": "images", "video": "images", "audio": "audio"}
# Maximum number of records that a process keeps in memory for the events of its WebSockets.
MAX_REMEMBERED = 5000


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptOutput:
    """A file of a prompt. `name` is unique within the prompt."""

    file: FileRecord
    name: str
    node_id: str
    # The key that the node used, such as `images`.
    key: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """`status` is the status that users see: a prefetched job is still waiting."""

    record: PromptRecord
    job: JobRecord
    status: JobStatus
    outputs: Sequence[PromptOutput] = ()
    # The texts that nodes displayed, by node.
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    # Set if the worker reported the node.
    failed_node: FailedNode | None = None

    @property
    def id(self) -> str:
        return self.record.prompt_id


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptPage:
    prompts: Sequence[Prompt]
    total: int


class Prompts:
    def __init__(self, databases: Databases, control: JobControl) -> None:
        self._databases = databases
        self._control = control
        # Records by job; `None` for a job that was submitted elsewhere. Entries never change.
        self._remembered: OrderedDict[tuple[str, str], PromptRecord | None] = OrderedDict()

    async def page(
        self,
        tenant_id: str,
        statuses: Collection[JobStatus],
        *,
        workflow_id: str | None = None,
        shows_hidden: bool = False,
        oldest_first: bool = False,
        by_duration: bool = False,
        offset: int = 0,
        limit: int,
    ) -> PromptPage:
        filters = [await status_filter(self._databases, tenant_id, status) for status in statuses]
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            found, total = await comfyui.prompt_page(
                tx,
                tenant_id,
                filters=filters,
                workflow_id=workflow_id,
                shows_hidden=shows_hidden,
                oldest_first=oldest_first,
                by_duration=by_duration,
                offset=offset,
                limit=limit,
            )
        return PromptPage(prompts=await self._add_outputs(tenant_id, found), total=total)

    async def find(self, tenant_id: str, prompt_id: str) -> Prompt | None:
        job_id = (await self.job_ids(tenant_id, [prompt_id])).get(prompt_id)
        return (await self.of_jobs(tenant_id, [job_id])).get(job_id) if job_id is not None else None

    async def of_jobs(self, tenant_id: str, job_ids: Collection[str]) -> dict[str, Prompt]:
        """Return the prompts of the jobs that were submitted through ComfyUI's API."""
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            found = await comfyui.prompts_of(tx, tenant_id, job_ids)
        return {prompt.job.id: prompt for prompt in await self._add_outputs(tenant_id, found)}

    async def records(self, tenant_id: str, job_ids: Collection[str]) -> dict[str, PromptRecord]:
        """Return the prompts that clients sent for these jobs, from memory if possible."""
        unknown = [job_id for job_id in job_ids if (tenant_id, job_id) not in self._remembered]
        if unknown:
            async with (await self._databases.shard_of(tenant_id)).read() as tx:
                found = {record.job_id: record for record, _ in await comfyui.prompts_of(tx, tenant_id, unknown)}
            for job_id in unknown:
                self._remembered[tenant_id, job_id] = found.get(job_id)
        records = {job_id: record for job_id in job_ids if (record := self._remembered[tenant_id, job_id]) is not None}
        while len(self._remembered) > MAX_REMEMBERED:
            self._remembered.popitem(last=False)
        return records

    async def job_ids(self, tenant_id: str, prompt_ids: Sequence[str]) -> dict[str, str]:
        """Return the jobs of prompts: prompt id → job id."""
        wanted = {prompt_id for prompt_id in prompt_ids if is_storable(prompt_id)}
        if not wanted:
            return {}
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            return await comfyui.prompts_by_id(tx, tenant_id, wanted)

    async def output_file(self, tenant_id: str, prompt_id: str, name: str) -> FileRecord | None:
        prompt = await self.find(tenant_id, prompt_id)
        outputs = prompt.outputs if prompt is not None else ()
        return next((output.file for output in outputs if output.name == name), None)

    async def cancel(
        self, tenant_id: str, prompt_ids: Sequence[str], *, statuses: Collection[JobStatus] = (*WAITING, *RUNNING)
    ) -> int:
        """Cancel the prompts that have one of these statuses, and return their number."""
        job_ids = await self.job_ids(tenant_id, prompt_ids)
        found = await self.of_jobs(tenant_id, list(job_ids.values()))
        return await self._cancel(tenant_id, [prompt for prompt in found.values() if prompt.status in statuses])

    async def cancel_waiting(self, tenant_id: str) -> None:
        while page := (await self.page(tenant_id, WAITING, limit=200, shows_hidden=True)).prompts:
            if not await self._cancel(tenant_id, page):
                return

    async def interrupt_oldest(self, tenant_id: str) -> None:
        """Cancel the prompt that has been running for the longest time."""
        running = (await self.page(tenant_id, RUNNING, limit=200, shows_hidden=True, oldest_first=True)).prompts
        await self._cancel(
            tenant_id, sorted(running, key=lambda prompt: prompt.job.started_at or prompt.job.created_at)[:1]
        )

    async def hide(self, tenant_id: str, prompt_ids: Sequence[str] | None = None) -> None:
        """Hide these prompts, or all ended prompts, from the history. Their jobs and outputs remain."""
        shard = await self._databases.shard_of(tenant_id)
        if prompt_ids is None:
            await shard.run(TransactionStep.TENANT, lambda tx: comfyui.hide_all(tx, tenant_id))
        elif job_ids := list((await self.job_ids(tenant_id, prompt_ids)).values()):
            await shard.run(TransactionStep.TENANT, lambda tx: comfyui.hide_prompts(tx, tenant_id, job_ids))

    async def _cancel(self, tenant_id: str, prompts: Sequence[Prompt]) -> int:
        count = 0
        for prompt in prompts:
            # The job may just have ended or been deleted.
            with suppress(Conflict, NotFound):
                await self._control.cancel(tenant_id, prompt.job.id)
                count += 1
        return count

    async def _add_outputs(self, tenant_id: str, found: Sequence[tuple[PromptRecord, JobRecord]]) -> list[Prompt]:
        made = [job.id for _, job in found if job.output_file_id is not None]
        prefetched: Collection[str] = ()
        if any(job.status == JobStatus.PROCESSING for _, job in found):
            prefetched = (await status_filter(self._databases, tenant_id, JobStatus.PROCESSING)).fetched
        of_jobs: Mapping[str, Mapping[str, int]] = {}
        files: Mapping[str, FileRecord] = {}
        about: Mapping[str, Mapping[str, Any] | None] = {}
        failed = [job.id for _, job in found if job.status == JobStatus.FAILED]
        nodes: Mapping[str, FailedNode] = {}
        if failed:
            async with (await self._databases.shard_of(tenant_id)).read() as tx:
                nodes = await jobs.failed_nodes(tx, failed)
        if made:
            async with (await self._databases.shard_of(tenant_id)).read() as tx:
                of_jobs = await gallery.of_jobs(tx, tenant_id, made)
                ids = [id_ for numbers in of_jobs.values() for id_ in numbers]
                files = await media.files_of(tx, tenant_id, ids) if ids else {}
                about = await media.metadata_of(tx, tenant_id, ids) if ids else {}
        return [
            Prompt(
                record=record,
                job=job,
                status=shown_status(job.status, is_prefetched=job.id in prefetched),
                outputs=_outputs([files[id_] for id_ in of_jobs.get(job.id, ()) if id_ in files], about),
                texts=_texts([about.get(id_) or {} for id_ in of_jobs.get(job.id, ())]),
                failed_node=nodes.get(job.id),
            )
            for record, job in found
        ]


def _outputs(files: Sequence[FileRecord], about: Mapping[str, Mapping[str, Any] | None]) -> list[PromptOutput]:
    outputs: list[PromptOutput] = []
    taken: set[str] = set()
    for number, file in enumerate(files, start=1):
        facts = about.get(file.id) or {}
        name = PurePosixPath(str(facts.get("filename") or f"output_{number:05}{PurePosixPath(file.path).suffix}")).name
        if name in taken:
            name = f"{PurePosixPath(name).stem}_{number}{PurePosixPath(name).suffix}"
        taken.add(name)
        key = facts.get("key") or _KEYS.get(file.mime_type.partition("/")[0], "files")
        outputs.append(PromptOutput(file=file, name=name, node_id=str(facts.get("node_id") or ""), key=str(key)))
    return outputs


def _texts(facts: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for about in facts:
        texts = about.get("texts")
        for node_id, shown in texts.items() if isinstance(texts, dict) else ():
            found[str(node_id)] = [str(text) for text in shown] if isinstance(shown, list) else [str(shown)]
    return found
