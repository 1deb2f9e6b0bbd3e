"""Files of the catalogue, which administrators upload for workflows and effects.

Workers cache these files by hash, so they download each file once and not for every job.

An upload URL stays valid for a while, even if its administrator loses the role. Uploads are therefore temporary: saving
a workflow or an effect copies them to new paths, for which no upload URL exists.
"""

import hashlib
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import PurePosixPath
from typing import Any

from comfyrelay.clock import utc_now
from comfyrelay.domain.ids import new_id
from comfyrelay.domain.properties import Property
from comfyrelay.domain.uploads import AnnouncedUpload, check_upload, extension_of
from comfyrelay.errors import Conflict, InvalidInput, NotFound
from comfyrelay.media_types import guess_media_type
from comfyrelay.storage.objects import ObjectStore, SignedUpload

FOLDER = "catalogue/assets/"
UPLOADS = "catalogue/uploads"
NOT_UPLOADED = "This file does not exist: send its bytes to `upload_url` first, or upload it again."
MAX_CACHED_URLS = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedAsset:
    """A prepared upload. Defaults, overrides and previews refer to the file by `path`."""

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
        """Sign an upload URL."""
        check_upload(new, max_bytes=self._max_bytes)
        path = f"{UPLOADS}/{new_id()}{extension_of(new)}"
        signed = await self._objects.sign_upload(
            path, content_type=new.mime_type, size=new.size, ttl_seconds=self._ttl_seconds
        )
        return PreparedAsset(path=path, signed=signed)

    @asynccontextmanager
    async def saving(self) -> AsyncIterator["SavedAssets"]:
        """Save the uploads of a workflow or an effect, which the block writes. If the block is refused, the copies are
        removed.

        After any other error, the object may have been written, so the copies stay.
        """
        saved = SavedAssets(objects=self._objects)
        try:
            yield saved
        except (Conflict, InvalidInput, NotFound):
            await self._objects.remove_many(saved.copies.values())
            raise

    async def remove_abandoned(self, *, older_than_seconds: float) -> int:
        """Remove uploads of at least this age, which have been saved or abandoned by then. Returns their number."""
        before = utc_now() - timedelta(seconds=max(older_than_seconds, self._ttl_seconds))
        old = [upload.path async for upload in self._objects.list(UPLOADS) if upload.modified_at <= before]
        if old:
            await self._objects.remove_many(old)
        return len(old)

    async def example_url(self, path: str | None) -> str | None:
        """Return a signed URL. It stays the same for a while, so that browsers can cache the file."""
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


@dataclass(kw_only=True, slots=True)
class SavedAssets:
    """The copies made by one change of the catalogue, by the path of the upload."""

    objects: ObjectStore
    copies: dict[str, str] = field(default_factory=dict)

    async def save_defaults(self, properties: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Save the default files, and add the hashes of those that exist. Raises `InvalidInput` if a given hash is
        wrong."""
        saved = [dict(fields) for fields in properties]
        for number, fields in enumerate(saved):
            prop = Property.from_json(fields)
            if not prop.is_asset or prop.default_value is None:
                continue
            path = await self._save(prop.default_value, f"properties.{number}.default_value")
            known = await self._hash(path)
            if known is not None and prop.default_value_hash not in (None, known):
                problem = f"The file's SHA-256 is {known}."
                raise InvalidInput(errors={f"properties.{number}.default_value_hash": problem})
            fields |= {"default_value": path, "default_value_hash": known or prop.default_value_hash}
        return saved

    async def save_overrides(
        self, properties: Sequence[Property], overrides: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Save the files in the overrides of an effect. Returns the overrides with the saved paths, and the hashes of
        files that exist, by path."""
        saved, hashes = dict(overrides), {}
        for prop in properties:
            if not prop.is_asset or saved.get(prop.key) is None:
                continue
            path = await self._save(str(saved[prop.key]), f"property_overrides.{prop.key}")
            saved[prop.key] = path
            if (known := await self._hash(path)) is not None:
                hashes[path] = known
        return saved, hashes

    async def save_example(self, path: str, name: str) -> str:
        """Save an example of an effect. It must be an uploaded image or video, because everybody can see examples."""
        kind = guess_media_type(path) or ""
        is_uploaded = path.startswith((FOLDER, f"{UPLOADS}/")) and ".." not in path
        if not (is_uploaded and kind.startswith(("image/", "video/"))):
            problem = "This must be the path of an image or a video that was uploaded with POST /api/admin/assets."
            raise InvalidInput(errors={name: problem})
        saved = await self._save(path, name)
        if not await self.objects.exists(saved):
            raise InvalidInput(errors={name: NOT_UPLOADED})
        return saved

    async def _save(self, path: str, name: str) -> str:
        """Copy an upload to its final path and return it. Other paths are returned unchanged."""
        if not path.startswith(f"{UPLOADS}/"):
            return path
        if path not in self.copies:
            # A new path for each change, so that files of submitted jobs never change.
            target = f"{FOLDER}{new_id()}{PurePosixPath(path).suffix}"
            try:
                await self.objects.copy(path, target)
            except NotFound:
                raise InvalidInput(errors={name: NOT_UPLOADED}) from None
            self.copies[path] = target
        return self.copies[path]

    async def _hash(self, path: str) -> str | None:
        digest = hashlib.sha256()
        try:
            async for piece in self.objects.stream(path):
                digest.update(piece)
        except NotFound:
            # An operator may put the file into storage later. Without a hash, workers download it for every job.
            return None
        return digest.hexdigest()
