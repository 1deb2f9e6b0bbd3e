"""Files of the catalogue, which administrators upload for workflows and effects.

Workers cache these files by hash, so that they download each file once and not with every job.
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
    """A prepared upload. Defaults and overrides refer to the file by `path`."""

    path: str
    signed: SignedUpload


class Assets:
    def __init__(self, objects: ObjectStore, *, max_bytes: int, ttl_seconds: float) -> None:
        self._objects = objects
        self._max_bytes = max_bytes
        self._ttl_seconds = ttl_seconds
        # URL and refresh time by path.
        self._urls: dict[str, tuple[str, float]] = {}

    async def create_upload(self, new: AnnouncedUpload) -> PreparedAsset:
        """Sign an upload URL. Each upload has a new path, so that files of submitted jobs never change."""
        check_upload(new, max_bytes=self._max_bytes)
        path = f"{FOLDER}{new_id()}{extension_of(new)}"
        signed = await self._objects.sign_upload(
            path, content_type=new.mime_type, size=new.size, ttl_seconds=self._ttl_seconds
        )
        return PreparedAsset(path=path, signed=signed)

    async def add_hashes(self, properties: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Add the hashes of the existing default files. Raise `InvalidInput` if a given hash is wrong."""
        hashed = [dict(fields) for fields in properties]
        for number, fields in enumerate(hashed):
            prop = Property.from_json(fields)
            if not prop.is_asset or prop.default_value is None:
                continue
            known = await self._hash(prop.default_value)
            if known is not None and prop.default_value_hash not in (None, known):
                problem = f"The file's SHA-256 is {known}."
                raise InvalidInput(errors={f"properties.{number}.default_value_hash": problem})
            fields["default_value_hash"] = known or prop.default_value_hash
        return hashed

    async def hash_overrides(self, properties: Sequence[Property], overrides: Mapping[str, Any]) -> dict[str, str]:
        """Return the hashes of the existing files in the overrides of an effect, by path."""
        assets = {prop.key for prop in properties if prop.is_asset}
        paths = [str(value) for key, value in overrides.items() if key in assets and value is not None]
        return {path: known for path in paths if (known := await self._hash(path)) is not None}

    async def check_preview(self, path: str) -> None:
        """Require an uploaded image or video, because all users see the preview of an effect."""
        kind = guess_media_type(path) or ""
        if not (path.startswith(FOLDER) and ".." not in path and kind.startswith(("image/", "video/"))):
            problem = "This must be the path of an image or a video that was uploaded with POST /api/admin/assets."
            raise InvalidInput(errors={"preview_path": problem})
        if not await self._objects.exists(path):
            raise InvalidInput(
                errors={"preview_path": "This file does not exist: send its bytes to `upload_url` first."}
            )

    async def preview_url(self, path: str | None) -> str | None:
        """Return a signed URL, which stays the same for a while so that browsers can cache the file."""
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
            # The file may be uploaded later. Until then workers download it with every job.
            return None
        return digest.hexdigest()
