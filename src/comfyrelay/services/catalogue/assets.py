"""Files of the catalogue: uploaded by an administrator, named by workflows and effects, known by their hashes.

Workers keep what has a hash, so that a file of an effect is fetched once and not with each job.
"""

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from comfyrelay.domain.ids import new_id
from comfyrelay.domain.properties import Property
from comfyrelay.domain.uploads import AnnouncedUpload, check_upload, extension_of
from comfyrelay.errors import InvalidInput, NotFound
from comfyrelay.media_types import guess_media_type
from comfyrelay.storage.objects import ObjectStore, SignedUpload

FOLDER = "catalogue/assets/"
KEPT_URLS = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedAsset:
    """The path to name in a default or an override, and how the bytes may be sent."""

    path: str
    signed: SignedUpload


class Assets:
    def __init__(self, objects: ObjectStore, *, max_bytes: int, ttl_seconds: float) -> None:
        self._objects = objects
        self._max_bytes = max_bytes
        self._ttl_seconds = ttl_seconds
        # by path, with when another is to be made
        self._urls: dict[str, tuple[str, float]] = {}

    async def begin(self, new: AnnouncedUpload) -> PreparedAsset:
        """Say where a new file's bytes go. Each has a path of its own, so what a job was promised never changes."""
        check_upload(new, max_bytes=self._max_bytes)
        path = f"{FOLDER}{new_id()}{extension_of(new)}"
        signed = await self._objects.sign_upload(
            path, content_type=new.mime_type, size=new.size, ttl_seconds=self._ttl_seconds
        )
        return PreparedAsset(path=path, signed=signed)

    async def with_hashes(self, properties: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The properties, each file among the defaults with its hash if it is there. A given hash must be right."""
        found = [dict(each) for each in properties]
        for number, each in enumerate(found):
            prop = Property.from_json(each)
            if not prop.is_asset or prop.default_value is None:
                continue
            known = await self._hash(prop.default_value)
            if known is not None and prop.default_value_hash not in (None, known):
                problem = f"The file's SHA-256 is {known}."
                raise InvalidInput(errors={f"properties.{number}.default_value_hash": problem})
            each["default_value_hash"] = known or prop.default_value_hash
        return found

    async def of_overrides(
        self, properties: Sequence[Mapping[str, Any]], overrides: Mapping[str, Any]
    ) -> dict[str, str]:
        """The hashes of the files that an effect puts in, by path, of those that are there."""
        assets = {each.key for each in map(Property.from_json, properties) if each.is_asset}
        paths = [str(value) for key, value in overrides.items() if key in assets and value is not None]
        return {path: known for path in paths if (known := await self._hash(path)) is not None}

    async def check_preview(self, path: str) -> None:
        """What shows an effect must be a picture or a video that was uploaded here, for everybody sees it."""
        kind = guess_media_type(path) or ""
        if not (path.startswith(FOLDER) and ".." not in path and kind.startswith(("image/", "video/"))):
            problem = "This must be the path of a picture or a video that was uploaded by POST /api/admin/assets."
            raise InvalidInput(errors={"preview_path": problem})
        if not await self._objects.exists(path):
            raise InvalidInput(errors={"preview_path": "There is no such file: send its bytes to `upload_url` first."})

    async def preview_url(self, path: str | None) -> str | None:
        """Where it can be had: the same for a while, so that browsers need not fetch it again."""
        if path is None:
            return None
        now = time.monotonic()
        url, fresh_until = self._urls.get(path, ("", 0.0))
        if now >= fresh_until:
            url = await self._objects.sign_download(path, ttl_seconds=self._ttl_seconds)
            if len(self._urls) >= KEPT_URLS:
                self._urls.clear()
            self._urls[path] = (url, now + self._ttl_seconds / 2)
        return url

    async def _hash(self, path: str) -> str | None:
        digest = hashlib.sha256()
        try:
            async for piece in self._objects.stream(path):
                digest.update(piece)
        except NotFound:
            # it may come later; until then workers fetch it with each job
            return None
        return digest.hexdigest()
