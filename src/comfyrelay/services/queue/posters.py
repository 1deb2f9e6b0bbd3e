"""Create posters and short previews of stored files, and store them next to the files.

Posters and previews are optional: no job fails or waits for long because of them. Their paths are derived from the
file's path, so they are removed with the file even if the process that created them has crashed.
"""

import asyncio
from dataclasses import replace

import structlog

from comfyrelay.domain.ids import poster_path, preview_path
from comfyrelay.domain.queue.updates import MediaFacts
from comfyrelay.errors import InvalidInput, NotFound
from comfyrelay.media.inspection import MediaInfo, Probes
from comfyrelay.media_types import media_kind
from comfyrelay.storage.objects import ObjectStore

log = structlog.get_logger(__name__)


class Posters:
    def __init__(self, probes: Probes, objects: ObjectStore, *, seconds: float) -> None:
        """Outputs wait at most `seconds` for their posters. `probes` are not shared with checks of outputs, so that no
        check waits for a poster."""
        self._probes = probes
        self._objects = objects
        self._seconds = seconds

    async def of_output(
        self, path: str, info: MediaInfo, *, mime_type: str, size: int, head: bytes = b""
    ) -> MediaFacts:
        """Create the poster and the preview of a checked output. Errors and slow files are postponed, never raised."""
        facts = _facts(info)
        if media_kind(mime_type) not in ("image", "video"):
            return facts
        try:
            async with asyncio.timeout(self._seconds):
                return await self._draw(facts, path, mime_type=mime_type, size=size, head=head)
        except (InvalidInput, NotFound) as error:
            log.info("poster.skipped", path=path, problem=error.detail)
            return facts
        except Exception as error:
            log.warning("poster.postponed", path=path, error=repr(error))
            return replace(facts, undrawn=True)

    def postponed(self, info: MediaInfo, *, mime_type: str) -> MediaFacts:
        """Return the facts of a checked output whose poster will be drawn later."""
        return replace(_facts(info), undrawn=media_kind(mime_type) in ("image", "video"))

    async def of_stored(self, path: str, *, mime_type: str) -> MediaFacts:
        """Inspect a stored file and create its poster and preview. Raises `InvalidInput` if the type is wrong."""
        if (stat := await self._objects.stat(path)) is None:
            raise NotFound(f"There is no object at {path!r}.")
        info = await self._probes.probe(self._objects, path, mime_type=mime_type, subject="file", size=stat.size)
        try:
            return await self._draw(_facts(info), path, mime_type=mime_type, size=stat.size)
        except InvalidInput as error:
            log.info("poster.skipped", path=path, problem=error.detail)
            return _facts(info)

    async def _draw(self, facts: MediaFacts, path: str, *, mime_type: str, size: int, head: bytes = b"") -> MediaFacts:
        drawn = await self._probes.draw(self._objects, path, mime_type=mime_type, size=size, head=head)
        if drawn is None:
            return facts
        poster, preview = drawn.poster, drawn.preview
        async with asyncio.TaskGroup() as group:
            if poster is not None:
                group.create_task(self._objects.put(poster_path(path, poster.extension), poster.data))
            if preview is not None:
                group.create_task(self._objects.put(preview_path(path, preview.extension), preview.data))
        return replace(
            facts, poster=poster.extension if poster else None, preview=preview.extension if preview else None
        )


def _facts(info: MediaInfo) -> MediaFacts:
    return MediaFacts(width=info.width, height=info.height, seconds=info.duration_seconds)
