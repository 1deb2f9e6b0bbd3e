"""Copy and check a job's output before the job counts as completed.

A worker may write to its upload until the URL expires, so the output is a copy under a new name that no URL can write.
The copy is checked before the job is settled. After a crash at any step, the upload still exists: a repeated `complete`
makes another copy, and orphaned copies are removed with the job's other orphaned uploads.

Poster and preview are made from the checked copy and stored next to it.
"""

import asyncio
import hashlib
from dataclasses import dataclass, replace
from functools import partial

import structlog

from comfyrelay.domain.ids import derived_paths, new_id, output_path
from comfyrelay.domain.outputs import output_type
from comfyrelay.domain.queue.updates import MediaFacts
from comfyrelay.errors import ConfigurationError, DatabaseUnavailable, InvalidInput, LeaseLost, NotFound
from comfyrelay.media.inspection import HEAD_BYTES, Probes
from comfyrelay.services.context import ServiceContext
from comfyrelay.services.queue.lease_payload import LeasePayload, LeasePayloads
from comfyrelay.services.queue.posters import Posters
from comfyrelay.services.queue.settle import Report, SettledOutput, Settlement, SettleService
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central.queue import dispatches
from comfyrelay.store.tenant import jobs
from comfyrelay.text import excerpt

log = structlog.get_logger(__name__)

# Smaller pieces are hashed on the event loop, because a thread would take longer.
SMALL_BYTES = 64 * 1024
MAX_NAME_LENGTH = 200
NO_OUTPUT = "The output is missing. Upload it to the lease's output URL and complete again, or report a failure."


@dataclass(frozen=True, kw_only=True, slots=True)
class _CopiedOutput:
    """A checked output and the path of its copy, or the problem that was found."""

    output: SettledOutput | None = None
    copy: str | None = None
    problem: str | None = None
    # Path of the upload, which is removed after settling.
    upload: str | None = None
    # Why a valid output has no poster, for the job's log.
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
        self._payloads = payloads
        self._settle = settle
        self._probes = probes
        self._posters = posters

    async def complete(self, report: Report) -> Settlement:
        """Settle the job with a copy of its output. Refuse a missing or invalid output and keep the lease."""
        try:
            lease = await self._payloads.of_lease(report.dispatch_id, report.lease_token)
        except LeaseLost:
            # The settlement decides whether the lease is lost or the report is a repeat.
            return await self._settle_report(replace(report, output=None))
        copied = await self._copy(lease, report.output)
        if copied.problem is not None and not await self._is_accepted(report, copied):
            await self._remove(copied.copy)
            return await self._settle_report(replace(report, output=None))
        if copied.note is not None:
            await self._log(report, copied.note)
        try:
            settlement = await self._settle_report(replace(report, output=copied.output))
        except LeaseLost:
            await self._remove(copied.copy)
            raise
        # After any other error, the job may have been settled. Both files stay, and the orphaned one is removed later.
        await self._remove(copied.copy if settlement.is_repeat else copied.upload)
        return settlement

    async def _settle_report(self, report: Report) -> Settlement:
        # The central commit decides. The shard is updated after the answer.
        return await self._settle.report(report, wait_for_tenant=False)

    async def _is_accepted(self, report: Report, copied: _CopiedOutput) -> bool:
        """Whether to settle despite the problem. Raises `InvalidInput` if the lease is still held."""
        if self._accepts_invalid:
            log.warning("output.invalid", dispatch_id=report.dispatch_id, problem=copied.problem)
            return True
        async with self._databases.central.read() as tx:
            dispatch = await dispatches.of_lease(tx, report.dispatch_id, report.lease_token)
        if dispatch is not None:
            await self._remove(copied.copy)
            raise InvalidInput(copied.problem, errors={"output": copied.problem or NO_OUTPUT})
        return False

    async def _log(self, report: Report, line: str) -> None:
        """Add a line to the job's log. A lost line does not fail the job."""
        async with self._databases.central.read() as tx:
            dispatch = await dispatches.of_lease(tx, report.dispatch_id, report.lease_token)
        if dispatch is None:
            return
        row = {
            "job_id": dispatch.tenant_job_id,
            "epoch": dispatch.epoch,
            "tenant_id": dispatch.tenant_id,
            "line": line,
        }
        try:
            with self._databases.watched(dispatch.shard):
                await self._databases.shard(dispatch.shard).run(
                    TransactionStep.HEARTBEAT_LOGS, partial(jobs.add_logs, lines=[row])
                )
        except DatabaseUnavailable:
            log.warning("output.log_lost", dispatch_id=dispatch.id, line=line)

    async def _copy(self, lease: LeasePayload, reported: SettledOutput | None) -> _CopiedOutput:
        upload = lease.upload_path
        if reported is None:
            return _CopiedOutput(problem=NO_OUTPUT, upload=upload)
        found = await self._objects.stat(upload)
        if found is None or found.size == 0:
            return _CopiedOutput(problem=NO_OUTPUT, upload=upload if found else None)
        if found.size > self._max_bytes:
            await self._remove(upload)
            raise self._too_large(found.size)
        file_id, extension = new_id(), lease.payload.output_extension
        copy = output_path(file_id, tenant_id=lease.tenant_id, job_id=lease.job_id, extension=extension)
        try:
            copied = await self._objects.copy(upload, copy)
            output, problem, note = await self._check(
                copy,
                replace(reported, file_id=file_id, extension=extension),
                size=copied.size,
                promised=lease.payload.output_mime_type,
            )
        except NotFound:
            return _CopiedOutput(problem=NO_OUTPUT)
        except Exception:
            await self._remove(copy)
            raise
        return _CopiedOutput(output=output, copy=copy, problem=problem, upload=upload, note=note)

    async def _check(
        self, copy: str, reported: SettledOutput, *, size: int, promised: str
    ) -> tuple[SettledOutput, str | None, str | None]:
        """Return the output with its real properties, its problem, and why it has no poster, if any."""
        if size > self._max_bytes:
            # The worker uploaded another file after the size check.
            raise self._too_large(size)
        digest, head = await self._read(copy) if reported.sha256 is not None else (None, b"")
        mime_type = output_type(reported.mime_type, promised)
        output = replace(reported, size=size, sha256=digest, mime_type=mime_type or promised)
        if (problem := _difference(output, reported)) is not None:
            return output, problem, None
        if mime_type is None:
            return output, f"The output is {reported.mime_type}, but this workflow creates {promised}.", None
        try:
            info = await self._probes.probe(
                self._objects, copy, mime_type=mime_type, size=size, head=head, allow_large=True
            )
        except InvalidInput as error:
            return output, error.detail, None
        except ConfigurationError as error:
            # This server cannot inspect media.
            if self._accepts_invalid:
                return output, error.detail, None
            raise
        if info.unread is not None:
            note = f"No preview was made of {_name(reported)}: the file {info.unread}. The file itself is complete."
            return replace(output, media=MediaFacts(width=info.width, height=info.height)), None, note
        media = await self._posters.of_output(copy, info, mime_type=mime_type, size=size, head=head)
        return replace(output, media=media), None, None

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

    async def _remove(self, path: str | None) -> None:
        """Remove an object and its derived files. If that fails, they stay as orphaned outputs of the job."""
        if path is None:
            return
        try:
            await self._objects.remove_many([path, *derived_paths(path)])
        except Exception:
            log.warning("output.removal_failed", path=path, exc_info=True)


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
