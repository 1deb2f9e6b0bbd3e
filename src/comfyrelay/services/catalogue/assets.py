"""Files of the catalogue, uploaded by an administrator and used by workflows and effects.

Workers cache files by hash, so a file of an effect is downloaded once and not with each job.
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
MAX_CACHED_URLS = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedAsset:
    """The path to use in a default or an override, and the signed URL for the bytes."""

    path: str
    signed: SignedUpload


class Assets:
    def __init__(self, objects: ObjectStore, *, max_bytes: int, ttl_seconds: float) -> None:
        self._objects = objects
        self._max_bytes = max_bytes
        self._ttl_seconds = ttl_seconds
        # URL and refresh time by path
        self._urls: dict[str, tuple[str, float]] = {}

    async def create_upload(self, new: AnnouncedUpload) -> PreparedAsset:
        """Sign an upload URL. Each upload gets a new path, so files of submitted jobs never change."""
        check_upload(new, max_bytes=self._max_bytes)
        path = f"{FOLDER}{new_id()}{extension_of(new)}"
        signed = await self._objects.sign_upload(
            path, content_type=new.mime_type, size=new.size, ttl_seconds=self._ttl_seconds
        )
        return PreparedAsset(path=path, signed=signed)

    async def add_hashes(self, properties: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Add the hashes of default files that exist. A hash that is given must be correct."""
        found = [dict(property_) for property_ in properties]
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

    async def hash_overrides(
        self, properties: Sequence[Mapping[str, Any]], overrides: Mapping[str, Any]
    ) -> dict[str, str]:
        """Hashes, by path, of the existing files in the overrides of an effect."""
        assets = {each.key for each in map(Property.from_json, properties) if each.is_asset}
        paths = [str(value) for key, value in overrides.items() if key in assets and value is not None]
        return {path: known for path in paths if (known := await self._hash(path)) is not None}

    async def check_preview(self, path: str) -> None:
        """Require an uploaded image or video: the preview of an effect is public."""
        kind = guess_media_type(path) or ""
        if not (path.startswith(FOLDER) and ".." not in path and kind.startswith(("image/", "video/"))):
            problem = "This must be the path of an image or a video that was uploaded with POST /api/admin/assets."
            raise InvalidInput(errors={"preview_path": problem})
        if not await self._objects.exists(path):
            raise InvalidInput(
                errors={"preview_path": "This file does not exist: send its bytes to `upload_url` first."}
            )

    async def preview_url(self, path: str | None) -> str | None:
        """Sign a URL. It stays the same for a while, so that browsers can cache the file."""
        if path is None:
            return None
        now = time.monotonic()
        url, fresh_until = self._urls.get(path, ("", 0.0))
        if now >= fresh_until:
            url = await self._objects.sign_download(path, ttl_seconds=self._ttl_seconds)
            if len(self._urls) >= MAX_CACHED_URLS:
                self._urls.clear()
            self._urls[path] = (url, now + self._ttl_seconds / 2)
        return url

    async def _hash(self, path: str) -> str | None:
        digest = hashlib.sha256()
        try:
            async for piece in self._objects.stream(path):
                digest.update(piece)
        except NotFound:
            # it may be uploaded later; until then workers download it with each job
            return None
        return digest.hexdigest()
