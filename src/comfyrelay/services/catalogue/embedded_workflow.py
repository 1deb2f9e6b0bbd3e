"""Read the workflow that ComfyUI embeds in images, videos and audio."""

import asyncio
import json

from comfyrelay.errors import InvalidInput, NotFound
from comfyrelay.json_size import has_more_values
from comfyrelay.media.inspection import ProbeLimits, Probes
from comfyrelay.protocol.base import checked
from comfyrelay.protocol.user import EmbeddedWorkflow
from comfyrelay.settings import Settings
from comfyrelay.storage.objects import ObjectStore


class EmbeddedWorkflows:
    def __init__(self, objects: ObjectStore, settings: Settings) -> None:
        self._objects = objects
        # The limits of a request body apply, because clients send the workflow back in one.
        self._limits = ProbeLimits(
            max_pixels=settings.probe_max_pixels,
            max_memory_bytes=settings.probe_memory_bytes,
            timeout_seconds=settings.probe_timeout_seconds,
            max_workflow_bytes=settings.max_large_body_bytes,
            max_workflow_values=settings.max_body_values,
        )
        # One process, not shared with inspections of outputs.
        self._probes = Probes(self._limits, processes=1)

    async def read(self, path: str) -> EmbeddedWorkflow:
        """Return the graph that produced an uploaded file, or else the workflow of the editor.

        Raises `NotFound` if the file does not exist, and `InvalidInput` if reading it would exceed a limit.
        """
        try:
            text = await self._probes.read_workflow(self._objects, path)
        except NotFound:
            raise NotFound("This file has not been uploaded yet.") from None
        return await asyncio.to_thread(self._check, text)

    def _check(self, text: bytes | None) -> EmbeddedWorkflow:
        """Parse the workflow. The text comes from an untrusted process."""
        if text is not None and has_more_values(text, self._limits.max_workflow_values):
            raise _unusable("It has too many values.")
        try:
            return checked(EmbeddedWorkflow, graph=None if text is None else json.loads(text))
        except (ValueError, RecursionError):
            raise _unusable("It is not valid JSON.") from None
        except InvalidInput as error:
            raise _unusable(" ".join(error.errors.values())) from None


def _unusable(why: str) -> InvalidInput:
    return InvalidInput(f"The workflow in this file cannot be used. {why}")
