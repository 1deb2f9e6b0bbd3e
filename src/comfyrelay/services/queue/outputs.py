"""Outputs are looked at before a job counts as completed: nobody pays for nothing."""

from typing import Literal

import structlog

from comfyrelay.errors import ConfigurationError, InvalidInput, LeaseLost, NotFound
from comfyrelay.services.databases import Databases
from comfyrelay.services.queue.handover import Handed, Handover
from comfyrelay.storage.media import Probes
from comfyrelay.storage.objects import ObjectStore
from comfyrelay.store.central import dispatches

log = structlog.get_logger(__name__)

NO_OUTPUT = "There is no output: upload it to the lease's output URL, then complete again, or report a failure."


class Outputs:
    def __init__(
        self, databases: Databases, handover: Handover, objects: ObjectStore, *, validation: Literal["fail", "warn"]
    ) -> None:
        self._databases = databases
        self._handover = handover
        self._objects = objects
        self._validation = validation

    async def check(
        self, dispatch_id: int, lease_token: str, *, size: int | None, mime_type: str | None
    ) -> Handed | None:
        """Refuse an output that is not there, or not what the worker says; the lease is kept.

        `None` for a lease that is not known: the settlement itself says whether it ended, or is a repeat.
        """
        try:
            handed = await self._handover.of_lease(dispatch_id, lease_token)
        except LeaseLost:
            return None
        problem = await self._problem(handed, size=size, mime_type=mime_type)
        if problem is None:
            return handed
        if self._validation == "warn":
            log.warning("output.not_valid", dispatch_id=dispatch_id, problem=problem)
            return handed
        if await self._is_current(dispatch_id, lease_token):
            raise InvalidInput(problem, errors={"output": problem})
        return None

    async def _problem(self, handed: Handed, *, size: int | None, mime_type: str | None) -> str | None:
        found = None if size is None else await self._objects.stat(handed.output_path)
        if found is None or found.size == 0:
            return NO_OUTPUT
        if found.size != size:
            return f"The output has {found.size} bytes, not {size}: upload it again."
        try:
            await probe(self._objects, handed.output_path, mime_type=mime_type or handed.snapshot.output_mime_type)
        except NotFound:
            return NO_OUTPUT
        except InvalidInput as error:
            return error.detail
        except ConfigurationError as error:
            # nothing here can look into media
            if self._validation == "warn":
                return error.detail
            raise
        return None

    async def _is_current(self, dispatch_id: int, lease_token: str) -> bool:
        async with self._databases.central.read() as tx:
            return await dispatches.of_lease(tx, dispatch_id, lease_token) is not None
