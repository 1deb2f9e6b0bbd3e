"""Posters and short previews: made of a stored file by the processes that read media, and put beside it.

Nothing waits for them for long, and nothing fails for want of one. Their names follow from that of the file, so that
whoever removes it removes them, and one that was put there by a process that died then is never lost sight of.
"""

import asyncio
from dataclasses import replace

import structlog

from comfyrelay.domain.ids import poster_path, preview_path
from comfyrelay.domain.queue.updates import MediaFacts
from comfyrelay.errors import InvalidInput, NotFound
from comfyrelay.media.inspection import Drawn, MediaInfo, Probes
from comfyrelay.media_types import media_kind
from comfyrelay.storage.objects import ObjectStore

log = structlog.get_logger(__name__)


class Posters:
    def __init__(self, probes: Probes, objects: ObjectStore, *, seconds: float) -> None:
        """`seconds` is the longest that an output waits for its own, whatever they wait for. The `probes` are not those
        that check outputs: nobody waits there for somebody else's poster."""
        self._probes = probes
        self._objects = objects
        self._seconds = seconds

    async def of_output(
        self, path: str, info: MediaInfo, *, mime_type: str, size: int, head: bytes = b""
    ) -> MediaFacts:
        """What is known of an output that was checked. Never raises: what takes too long here is left for later."""
        found = _found(info)
        if media_kind(mime_type) not in ("image", "video"):
            return found
        try:
            async with asyncio.timeout(self._seconds):
                return await self._drawn(found, path, mime_type=mime_type, size=size, head=head)
        except (InvalidInput, NotFound) as error:
            log.info("poster.not_made", path=path, problem=error.detail)
            return found
        except Exception as error:
            log.warning("poster.postponed", path=path, error=repr(error))
            return replace(found, undrawn=True)

    async def of_stored(self, path: str, *, mime_type: str) -> MediaFacts:
        """What can be found out about a file that nobody has looked into. `InvalidInput` when it is no such media."""
        if (stat := await self._objects.stat(path)) is None:
            raise NotFound(f"There is no object at {path!r}.")
        info = await self._probes.probe(self._objects, path, mime_type=mime_type, subject="file", size=stat.size)
        try:
            return await self._drawn(_found(info), path, mime_type=mime_type, size=stat.size)
        except InvalidInput as error:
            log.info("poster.not_made", path=path, problem=error.detail)
            return _found(info)

    async def _drawn(self, found: MediaFacts, path: str, *, mime_type: str, size: int, head: bytes = b"") -> MediaFacts:
        drawn = await self._probes.draw(self._objects, path, mime_type=mime_type, size=size, head=head)
        return found if drawn is None else await self._put(found, path, drawn)

    async def _put(self, found: MediaFacts, path: str, drawn: Drawn) -> MediaFacts:
        """They are there before anybody is told of them."""
        poster, preview = drawn.poster, drawn.preview
        async with asyncio.TaskGroup() as group:
            if poster is not None:
                group.create_task(self._objects.put(poster_path(path, poster.extension), poster.data))
            if preview is not None:
                group.create_task(self._objects.put(preview_path(path, preview.extension), preview.data))
        return replace(
            found, poster=poster.extension if poster else None, preview=preview.extension if preview else None
        )


def _found(info: MediaInfo) -> MediaFacts:
    return MediaFacts(width=info.width, height=info.height, seconds=info.duration_seconds)
