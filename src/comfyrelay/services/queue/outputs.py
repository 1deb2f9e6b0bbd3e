"""Copy and check a job's outputs before the job counts as completed.

A worker can write to its uploads until their URLs expire, so an output is a copy under a new name, for which no upload
URL exists. The copies are checked before the job is settled. After a crash at any step, the uploads still exist: a
repeated `complete` makes new copies, and orphaned copies are removed with the job's other orphaned uploads.

The poster and the preview are drawn from the checked copy and stored next to it.

The first output is the cover. If it is unreadable, the job fails. Any other unreadable output is kept as a file without
a preview. Outputs that exceed a limit of the inspection are kept without a preview.
"""

import asyncio
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import structlog

from comfyrelay.domain.ids import derived_paths, new_id, output_path
from comfyrelay.domain.outputs import output_type, type_of_extension
from comfyrelay.domain.queue.updates import MediaFacts
from comfyrelay.errors import ConfigurationError, DatabaseUnavailable, InvalidInput, LeaseLost, NotFound
from comfyrelay.media.inspection import HEAD_BYTES, MediaInfo, Probes
from comfyrelay.media_types import OCTET_STREAM
from comfyrelay.services.context import ServiceContext
from comfyrelay.services.queue.lease_payload import LeasePayload, LeasePayloads
from comfyrelay.services.queue.posters import Posters
from comfyrelay.services.queue.settle import Report, SettledOutput, Settlement, SettleService
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central.queue import dispatches
from comfyrelay.store.tenant import jobs
from comfyrelay.text import excerpt

log = structlog.get_logger(__name__)

# Smaller pieces are hashed on the event loop, because switching to a thread would take longer.
SMALL_BYTES = 64 * 1024
MAX_NAME_LENGTH = 200
# Maximum number of outputs of one job that are copied and checked at the same time.
MAX_CONCURRENT_CHECKS = 8
# The posters of other outputs are drawn later, so that jobs with many outputs complete quickly.
MAX_DRAWN = 20
NO_OUTPUT = "The output is missing. Upload it to the lease's output URL and complete again, or report a failure."


@dataclass(frozen=True, kw_only=True, slots=True)
class _CopiedOutput:
    """A checked output and the path of its copy, or the problem that was found."""

    output: SettledOutput | None = None
    copy: str | None = None
    problem: str | None = None
    # The path of the upload, which is removed after settling.
    upload: str | None = None
    # The reason why a valid output has no poster, for the job's log.
    note: str | None = None


class Outputs:
    def __init__(
        self,
        context: ServiceContext,
        payloads: LeasePayloads,
        settle: SettleService,
        probes: Probes,
        posters: Posters,
    ) -> None:
        self._databases = context.databases
        self._objects = context.objects
        self._accepts_invalid = context.settings.output_validation == "warn"
        self._max_bytes = context.settings.max_output_bytes
        self._max_files = context.settings.max_output_files
        self._payloads = payloads
        self._settle = settle
        self._probes = probes
        self._posters = posters

    async def complete(self, report: Report) -> Settlement:
        """Settle the job with copies of its outputs. If an output is missing or invalid, refuse and keep the lease."""
        if (files := 1 + len(report.more_outputs)) > self._max_files:
            problem = f"The job has {files} outputs, but at most {self._max_files} are kept. Leave the others out."
            raise InvalidInput(problem, errors={"more_outputs": problem})
        without_output = replace(report, output=None, more_outputs=(), is_repeat_only=True)
        try:
            lease = await self._payloads.of_lease(report.dispatch_id, report.lease_token)
        except LeaseLost:
            # The settlement decides whether the lease is lost or the report is a repeat.
            return await self._settle_report(without_output)
        copied = await self._copy_all(lease, [report.output, *report.more_outputs])
        copies = [output.copy for output in copied]
        if any(output.problem is not None for output in copied) and not await self._is_accepted(report, copied):
            await self._remove(copies)
            return await self._settle_report(without_output)
        if notes := [output.note for output in copied if output.note is not None]:
            await self._log(report, notes)
        cover, *more = [output.output for output in copied]
        report = replace(report, output=cover, more_outputs=[output for output in more if output is not None])
        try:
            settlement = await self._settle_report(report)
        except LeaseLost:
            await self._remove(copies)
            raise
        # After any other error, the job may have been settled. All files are kept, and orphaned files are removed
        # later.
        await self._remove(copies if settlement.is_repeat else [output.upload for output in copied])
        return settlement

    async def _settle_report(self, report: Report) -> Settlement:
        # The commit of the central database is decisive. The shard is updated after the answer.
        return await self._settle.report(report, wait_for_tenant=False)

    async def _is_accepted(self, report: Report, copied: Sequence[_CopiedOutput]) -> bool:
        """Whether to settle despite the first problem. Raises `InvalidInput` if the lease is still held."""
        problem = next(output.problem for output in copied if output.problem is not None)
        if self._accepts_invalid:
            log.warning("output.invalid", dispatch_id=report.dispatch_id, problem=problem)
            return True
        async with self._databases.central.read() as tx:
            dispatch = await dispatches.of_lease(tx, report.dispatch_id, report.lease_token)
        if dispatch is not None:
            await self._remove(output.copy for output in copied)
            raise InvalidInput(problem, errors={"output": problem})
        return False

    async def _log(self, report: Report, lines: Sequence[str]) -> None:
        """Add lines to the job's log. A lost line does not fail the job."""
        async with self._databases.central.read() as tx:
            dispatch = await dispatches.of_lease(tx, report.dispatch_id, report.lease_token)
        if dispatch is None:
            return
        of_job = {"job_id": dispatch.tenant_job_id, "epoch": dispatch.epoch, "tenant_id": dispatch.tenant_id}
        rows = [{**of_job, "line": line} for line in lines]
        try:
            with self._databases.watched(dispatch.shard):
                await self._databases.shard(dispatch.shard).run(
                    TransactionStep.HEARTBEAT_LOGS, partial(jobs.add_logs, lines=rows)
                )
        except DatabaseUnavailable:
            log.warning("output.log_lost", dispatch_id=dispatch.id, lines=lines)

    async def _copy_all(self, lease: LeasePayload, reported: Sequence[SettledOutput | None]) -> Sequence[_CopiedOutput]:
        """Copy and check the outputs of a job. After an error, no copy is left."""
        # Ids are created in order, because the gallery sorts outputs with the same time by id.
        numbered = [(number, output, new_id()) for number, output in enumerate(reported, start=1)]
        if len(numbered) == 1:
            return [await self._copy(lease, *numbered[0])]
        limit = asyncio.Semaphore(MAX_CONCURRENT_CHECKS)

        async def copy(number: int, output: SettledOutput | None, file_id: str) -> _CopiedOutput:
            async with limit:
                return await self._copy(lease, number, output, file_id)

        done = await asyncio.gather(*(copy(*output) for output in numbered), return_exceptions=True)
        copied = [output for output in done if isinstance(output, _CopiedOutput)]
        for error in done:
            if isinstance(error, BaseException):
                await self._remove(output.copy for output in copied)
                raise error
        return copied

    async def _copy(
        self, lease: LeasePayload, number: int, reported: SettledOutput | None, file_id: str
    ) -> _CopiedOutput:
        is_cover = number == 1
        if reported is None:
            return _CopiedOutput(problem=NO_OUTPUT, upload=lease.upload_path)
        if is_cover:
            upload, extension = lease.upload_path, lease.payload.output_extension
            promised = lease.payload.output_mime_type
        else:
            upload, extension = lease.upload_of(number), reported.extension
            promised = type_of_extension(extension)
            reported = replace(reported, mime_type=promised)
        found = await self._objects.stat(upload)
        if found is None or (is_cover and found.size == 0):
            return _CopiedOutput(problem=_missing(number), upload=upload if found else None)
        if found.size > self._max_bytes:
            await self._remove([upload])
            raise self._too_large(found.size)
        copy = output_path(file_id, tenant_id=lease.tenant_id, job_id=lease.job_id, extension=extension)
        reported = replace(reported, file_id=file_id, extension=extension)
        try:
            copied = await self._objects.copy(upload, copy)
            checked = await self._check(copy, reported, size=copied.size, promised=promised, number=number)
        except NotFound:
            return _CopiedOutput(problem=_missing(number))
        except Exception:
            await self._remove([copy])
            raise
        return replace(checked, copy=copy, upload=upload)

    async def _check(
        self, copy: str, reported: SettledOutput, *, size: int, promised: str, number: int
    ) -> _CopiedOutput:
        """Return the output with its real properties, its problem, and why it has no poster, if any."""
        if size > self._max_bytes:
            # The worker uploaded another file after the size check.
            raise self._too_large(size)
        digest, head = await self._read(copy) if reported.sha256 is not None else (None, b"")
        mime_type = output_type(reported.mime_type, promised)
        output = replace(reported, size=size, sha256=digest, mime_type=mime_type or promised)
        problem = _difference(output, reported)
        if problem is None and mime_type is None:
            problem = f"The output is {reported.mime_type}, but this workflow creates {promised}."
        if problem is not None:
            return _CopiedOutput(output=output, problem=problem)
        try:
            info = await self._probes.probe(
                self._objects, copy, mime_type=output.mime_type, size=size, head=head, allow_unread=True
            )
        except InvalidInput as error:
            if number > 1:
                note = f"No preview was made of {_name(reported)}, which is kept as a file. {error.detail}"
                return _CopiedOutput(output=replace(output, mime_type=OCTET_STREAM), note=note)
            return _CopiedOutput(output=output, problem=error.detail)
        except ConfigurationError as error:
            # This server cannot inspect media.
            if self._accepts_invalid:
                return _CopiedOutput(output=output, problem=error.detail)
            raise
        if info.unread is not None:
            note = f"No preview was made of {_name(reported)}: the file {info.unread}. The file itself is complete."
            media = MediaFacts(width=info.width, height=info.height)
            return _CopiedOutput(output=replace(output, media=media), note=note)
        media = await self._draw(copy, info, output, number=number, head=head)
        return _CopiedOutput(output=replace(output, media=media))

    async def _draw(self, copy: str, info: MediaInfo, output: SettledOutput, *, number: int, head: bytes) -> MediaFacts:
        if number > MAX_DRAWN:
            return self._posters.postponed(info, mime_type=output.mime_type)
        return await self._posters.of_output(copy, info, mime_type=output.mime_type, size=output.size, head=head)

    async def _read(self, path: str) -> tuple[str, bytes]:
        """Read an object once, and return its SHA-256 and its first bytes."""
        digest, head = hashlib.sha256(), bytearray()
        async for piece in self._objects.stream(path):
            head += piece[: HEAD_BYTES - len(head)]
            if len(piece) <= SMALL_BYTES:
                digest.update(piece)
            else:
                await asyncio.to_thread(digest.update, piece)
        return digest.hexdigest(), bytes(head)

    def _too_large(self, size: int) -> InvalidInput:
        problem = f"The output is too large: {size} bytes, but at most {self._max_bytes} are allowed."
        return InvalidInput(problem, errors={"output": problem})

    async def _remove(self, paths: Iterable[str | None]) -> None:
        """Remove objects and their derived files. If that fails, they remain as orphaned outputs of the job."""
        objects = [name for path in paths if path is not None for name in (path, *derived_paths(path))]
        if not objects:
            return
        try:
            await self._objects.remove_many(objects)
        except Exception:
            log.warning("output.removal_failed", paths=objects, exc_info=True)


def _missing(number: int) -> str:
    return NO_OUTPUT if number == 1 else f"Output {number} is missing. Upload it to its URL and complete again."


def _difference(found: SettledOutput, reported: SettledOutput) -> str | None:
    if found.size != reported.size:
        return f"The output has {found.size} bytes, not {reported.size}. Upload it again."
    if found.sha256 != reported.sha256:
        return f"The output has the SHA-256 {found.sha256}, not {reported.sha256}. Upload it again."
    return None


def _name(output: SettledOutput) -> str:
    """Return the name that ComfyUI gave the output."""
    name = (output.metadata or {}).get("filename")
    return excerpt(name, length=MAX_NAME_LENGTH) if isinstance(name, str) and name else f"output.{output.extension}"
