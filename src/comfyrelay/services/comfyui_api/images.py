"""Change the channels or the format of images that clients of ComfyUI's API view and upload."""

from comfyrelay.domain.records.jobs import FileRecord
from comfyrelay.media.inspection import ImageEdit, Probes
from comfyrelay.storage.objects import ObjectStore

__all__ = ["ImageEdit", "Images"]


class Images:
    def __init__(self, objects: ObjectStore, probes: Probes) -> None:
        self._objects = objects
        self._probes = probes

    async def edited(self, file: FileRecord, edit: ImageEdit) -> bytes:
        """Return an edited image. Raises `InvalidInput` if the file is not a readable image."""
        return await self._probes.edit(self._objects, file.path, edit)

    async def masked(self, file: FileRecord, mask: bytes) -> bytes:
        """Return an image as PNG, with the alpha channel of another image of the same size."""
        return await self._probes.edit(self._objects, file.path, ImageEdit(), mask=mask)
