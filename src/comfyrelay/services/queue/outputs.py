"""Outputs are copied, and the copies looked at, before a job counts as completed: nobody pays for nothing, and nobody
can change what was paid for.

A worker may write to its upload until the URL expires. So what counts is a copy under a new name, which no URL can
write; it is checked, and then settled with. Each step may be the last before a crash: the upload stays until the
verdict is written, so a `complete` that is repeated makes another copy, and what is left over is removed with the other
strays of the job.

A poster and a preview are made of the copy that was found to be good, and lie derived_paths it: they share its fate.
"""

import asyncio
import hashlib
from dataclasses import dataclass, replace
from typing import Literal

import structlog

from comfyrelay.domain.ids import derived_paths, new_id, output_path
from comfyrelay.domain.outputs import output_type
from comfyrelay.errors import ConfigurationError, InvalidInput, LeaseLost, NotFound
from comfyrelay.media.inspection import HEAD_BYTES, Probes
from comfyrelay.services.databases import Databases
from comfyrelay.services.queue.lease_payload import Handed, Handover
from comfyrelay.services.queue.posters import Posters
from comfyrelay.services.queue.settle import Report, Settle, SettledOutput, Settlement
from comfyrelay.storage.objects import ObjectStore
from comfyrelay.store.central.queue import dispatches

log = structlog.get_logger(__name__)

# Hashed where it is read: handing it to a thread would take longer.
SMALL_BYTES = 64 * 1024
NO_OUTPUT = "There is no output: upload it to the lease's output URL, then complete again, or report a failure."


@dataclass(frozen=True, kw_only=True, slots=True)
class _Taken:
    """An output as it would count, and its copy; without one, there is nothing to take."""

    output: SettledOutput | None = None
    copy: str | None = None
    problem: str | None = None
    # what is left of it once it is settled
    upload: str | None = None


class Outputs:
    def __init__(
        self,
        databases: Databases,
        handover: Handover,
        settle: Settle,
        objects: ObjectStore,
        probes: Probes,
        *,
        posters: Posters,
        validation: Literal["fail", "warn"],
        max_bytes: int,
    ) -> None:
        self._databases = databases
        self._handover = handover
        self._settle = settle
        self._objects = objects
        self._probes = probes
        self._posters = posters
        self._validation = validation
        self._max_bytes = max_bytes

    async def complete(self, report: Report) -> Settlement:
        """Settle with a copy of the output. One that is not there, or not what it should be, is refused, and the lease
        kept."""
        try:
            handed = await self._handover.of_lease(report.dispatch_id, report.lease_token)
        except LeaseLost:
            # the settlement itself says whether it ended, or is a repeat
            return await self._settled(replace(report, output=None))
        taken = await self._take(handed, report.output)
        if taken.problem is not None and not await self._may_pass(report, taken):
            await self._remove(taken.copy)
            return await self._settled(replace(report, output=None))
        try:
            settlement = await self._settled(replace(report, output=taken.output))
        except LeaseLost:
            await self._remove(taken.copy)
            raise
        # any other error leaves open whether it was settled: then both stay, and one of them is found to be a stray
        await self._remove(taken.copy if settlement.is_repeat else taken.upload)
        return settlement

    async def _settled(self, report: Report) -> Settlement:
        # the decision stands once the queue has it; the shard is updated behind the answer
        return await self._settle.report(report, wait_for_tenant=False)

    async def _may_pass(self, report: Report, taken: _Taken) -> bool:
        """Whether to settle with it all the same; `InvalidInput` where the lease still waits for a better one."""
        if self._validation == "warn":
            log.warning("output.not_valid", dispatch_id=report.dispatch_id, problem=taken.problem)
            return True
        async with self._databases.central.read() as tx:
            is_current = await dispatches.of_lease(tx, report.dispatch_id, report.lease_token) is not None
        if is_current:
            await self._remove(taken.copy)
            raise InvalidInput(taken.problem, errors={"output": taken.problem or NO_OUTPUT})
        return False

    async def _take(self, handed: Handed, told: SettledOutput | None) -> _Taken:
        upload = handed.upload_path
        if told is None:
            return _Taken(problem=NO_OUTPUT, upload=upload)
        found = await self._objects.stat(upload)
        if found is None:
            return _Taken(problem=NO_OUTPUT)
        if found.size == 0:
            return _Taken(problem=NO_OUTPUT, upload=upload)
        if found.size > self._max_bytes:
            await self._remove(upload)
            raise self._too_large(found.size)
        file_id, extension = new_id(), handed.snapshot.output_extension
        copy = output_path(file_id, tenant_id=handed.tenant_id, job_id=handed.job_id, extension=extension)
        try:
            copied = await self._objects.copy(upload, copy)
            output, problem = await self._check(
                copy,
                replace(told, file_id=file_id, extension=extension),
                size=copied.size,
                promised=handed.snapshot.output_mime_type,
            )
        except NotFound:
            return _Taken(problem=NO_OUTPUT)
        except Exception:
            await self._remove(copy)
            raise
        return _Taken(output=output, copy=copy, problem=problem, upload=upload)

    async def _check(
        self, copy: str, told: SettledOutput, *, size: int, promised: str
    ) -> tuple[SettledOutput, str | None]:
        """The output as it was found, and what is wrong with it."""
        if size > self._max_bytes:
            # another one was uploaded after its size was looked at
            raise self._too_large(size)
        digest, head = await self._read(copy) if told.sha256 is not None else (None, b"")
        kept = output_type(told.mime_type, promised)
        output = replace(told, size=size, sha256=digest, mime_type=kept or promised)
        if size != told.size:
            return output, f"The output has {size} bytes, not {told.size}: upload it again."
        if digest != told.sha256:
            return output, f"The output has the SHA-256 {digest}, not {told.sha256}: upload it again."
        if kept is None:
            return output, f"The output is {told.mime_type}, but this job makes {promised}."
        try:
            info = await self._probes.probe(self._objects, copy, mime_type=kept, size=size, head=head)
        except InvalidInput as error:
            return output, error.detail
        except ConfigurationError as error:
            # nothing here can look into media
            if self._validation == "warn":
                return output, error.detail
            raise
        media = await self._posters.of_output(copy, info, mime_type=kept, size=size, head=head)
        return replace(output, media=media), None

    async def _read(self, path: str) -> tuple[str, bytes]:
        """The SHA-256 of an object, and its first bytes, so that they need not be read again."""
        digest, head = hashlib.sha256(), bytearray()
        async for piece in self._objects.stream(path):
            head += piece[: HEAD_BYTES - len(head)]
            if len(piece) <= SMALL_BYTES:
                digest.update(piece)
            else:
                await asyncio.to_thread(digest.update, piece)
        return digest.hexdigest(), bytes(head)

    def _too_large(self, size: int) -> InvalidInput:
        problem = f"The output is too large: it has {size} bytes, and at most {self._max_bytes} are allowed."
        return InvalidInput(problem, errors={"output": problem})

    async def _remove(self, path: str | None) -> None:
        """As far as that can be done now: what stays is a stray of its job."""
        if path is None:
            return
        try:
            await self._objects.remove_many([path, *derived_paths(path)])
        except Exception:
            log.warning("output.not_removed", path=path, exc_info=True)
