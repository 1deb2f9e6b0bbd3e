"""Measure the inputs of effects, for limits and prices. Claims of clients about their files do not count."""

import asyncio
from collections.abc import Iterable, Sequence

from comfyrelay.domain.payloads import StoredFile
from comfyrelay.domain.prices.effects import PricedEffect, needs_input
from comfyrelay.domain.prices.limits import InputFacts
from comfyrelay.domain.properties import Property
from comfyrelay.errors import InvalidInput
from comfyrelay.media.image_headers import read_image_header
from comfyrelay.media.inspection import Probes
from comfyrelay.media_types import media_kind
from comfyrelay.services.jobs.submission.upload_checks import HEAD_BYTES
from comfyrelay.storage.objects import ObjectStore

MAX_KNOWN_FILES = 10_000


class MeasuredInputs:
    def __init__(self, objects: ObjectStore, probes: Probes) -> None:
        self._objects = objects
        self._probes = probes
        # Files that were read completely, by path and ETag. A few S3 servers let an upload replace another one.
        self._known: dict[tuple[str, str], InputFacts] = {}

    async def of(
        self, files: Iterable[StoredFile], effect: PricedEffect, properties: Sequence[Property]
    ) -> dict[str, InputFacts]:
        """Return the size and duration of uploaded files, by id. Raises `InvalidInput` if one cannot be read."""
        has_media = any(prop.is_asset for prop in properties)
        found = sorted(files, key=lambda file: file.id) if has_media else []
        is_priced = needs_input(effect, properties)
        measured = await asyncio.gather(*(self._measure(file, is_priced=is_priced) for file in found))
        return {file.id: facts for file, facts in zip(found, measured, strict=True)}

    async def _measure(self, file: StoredFile, *, is_priced: bool) -> InputFacts:
        kind = media_kind(file.mime_type)
        if (stat := await self._objects.stat(file.path)) is None:
            # A larger file could be uploaded after the limits were checked.
            raise InvalidInput(errors={"input_file_id": f"{file.name or 'This file'} is not uploaded yet."})
        if kind == "image" and not is_priced and (facts := await self._read_header(file, stat.size)) is not None:
            # The image is not decoded.
            return facts
        known = self._known.get((file.path, stat.etag))
        if known is None:
            if len(self._known) >= MAX_KNOWN_FILES:
                del self._known[next(iter(self._known))]
            known = self._known[file.path, stat.etag] = await self._probe(file, stat.size)
        return known

    async def _probe(self, file: StoredFile, size: int) -> InputFacts:
        try:
            info = await self._probes.probe(
                self._objects, file.path, mime_type=file.mime_type, subject="file", size=size, is_whole=True
            )
        except InvalidInput as error:
            raise InvalidInput(errors={"input_file_id": f"{file.name or 'This file'}: {error.detail}"}) from error
        seconds = 0.0 if info.kind == "image" else info.duration_seconds
        return InputFacts(width=info.width, height=info.height, seconds=seconds, frames=info.frames)

    async def _read_header(self, file: StoredFile, size: int) -> InputFacts | None:
        length = min(size, HEAD_BYTES)
        pieces = [piece async for piece in self._objects.stream(file.path, start=0, length=length)] if length else []
        header = read_image_header(b"".join(pieces))
        if header is None or header.frames is None:
            return None
        return InputFacts(width=header.width, height=header.height, seconds=0.0, frames=header.frames)
