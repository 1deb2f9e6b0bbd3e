"""Measure inputs for a price. What a client says about a file does not count."""

from comfyrelay.domain.payloads import StoredFile
from comfyrelay.domain.prices.effects import InputFacts
from comfyrelay.errors import InvalidInput
from comfyrelay.media.inspection import Probes
from comfyrelay.storage.objects import ObjectStore


class MeasuredInputs:
    def __init__(self, objects: ObjectStore, probes: Probes) -> None:
        self._objects = objects
        self._probes = probes

    async def measure(self, file: StoredFile) -> InputFacts:
        """Return the size and duration of an uploaded file. Raises `InvalidInput` if it cannot be read."""
        name = file.name or "This file"
        if (stat := await self._objects.stat(file.path)) is None:
            raise InvalidInput(errors={"input_file_id": f"{name} is not uploaded yet."})
        try:
            info = await self._probes.probe(
                self._objects, file.path, mime_type=file.mime_type, subject="file", size=stat.size
            )
        except InvalidInput as error:
            raise InvalidInput(errors={"input_file_id": f"{name}: {error.detail}"}) from error
        return InputFacts(width=info.width, height=info.height, seconds=info.duration_seconds)
