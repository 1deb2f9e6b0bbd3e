"""Names, sizes, pictures and metadata of a ComfyUI's model files, read through its routes.

Every path is built from names that this server has listed.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote

from comfyrelay.errors import ServerRefused
from comfyrelay.http_client import Http, body_of, object_in

# ComfyUI lists these folders in addition to those with models.
_OTHER_FOLDERS = frozenset({"configs", "custom_nodes"})
# ComfyUI converts pictures to WebP.
PICTURE_TYPES = frozenset({"image/jpeg", "image/png", "image/webp"})
# Larger pictures are not shown.
MAX_PICTURE_BYTES = 16 * 1024**2


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFile:
    name: str
    # Number of the file's directory, if the folder consists of several directories.
    place: int = 0
    # Some versions and extensions of ComfyUI do not report these.
    size_bytes: int | None = None
    modified_at: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    media_type: str
    content: bytes


class ModelFiles:
    def __init__(self, http: Http) -> None:
        self._http = http

    @classmethod
    @asynccontextmanager
    async def of(cls, url: str) -> AsyncIterator[Self]:
        """Yield the models of the ComfyUI at this URL, which may contain a password."""
        http = Http(url)
        try:
            yield cls(http)
        finally:
            await http.close()

    async def names_by_folder(self) -> dict[str, list[str]]:
        """Return the names of all models by folder, as listed in node definitions."""
        folders = [folder for folder in await self._list("/models") if folder not in _OTHER_FOLDERS]
        lists = await asyncio.gather(*(self._list(f"/models/{quote(folder, safe='')}") for folder in folders))
        return dict(zip(folders, lists, strict=True))

    async def details(self, folder: str) -> dict[str, ModelFile]:
        """Return the details of a folder's files by name. The server does not list all kinds of files."""
        response = await self._http.send("GET", f"/experiment/models/{quote(folder, safe='')}")
        try:
            found = response.json() if response.is_success else []
        except ValueError:
            found = []
        entries = [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []
        return {str(entry.get("name")): _model_file(entry) for entry in entries}

    async def picture(self, folder: str, file: ModelFile) -> Picture | None:
        """Return the picture next to a file, or the picture in its metadata."""
        path = f"/experiment/models/preview/{quote(folder, safe='')}/{file.place}/{quote(file.name)}"
        async with self._http.stream("GET", path) as response:
            media_type = response.headers.get("Content-Type", "").partition(";")[0].strip()
            if not response.is_success or media_type not in PICTURE_TYPES:
                return None
            content = bytearray()
            async for piece in body_of(response):
                content += piece
                if len(content) > MAX_PICTURE_BYTES:
                    return None
        return Picture(media_type=media_type, content=bytes(content))

    async def metadata(self, folder: str, name: str) -> Mapping[str, Any]:
        """Return the metadata in a safetensors file's header, or an empty mapping. ComfyUI reads headers up to 1
        MiB."""
        path = f"/view_metadata/{quote(folder, safe='')}"
        response = await self._http.send("GET", path, params={"filename": name})
        return object_in(response) if response.is_success else {}

    async def _list(self, path: str) -> list[str]:
        found = await self._http.json("GET", path)
        if not isinstance(found, list):
            raise ServerRefused(f"{self._http.url} is not a ComfyUI server: {path} returned no list.")
        return [name for name in found if isinstance(name, str)]


def _model_file(entry: Mapping[str, Any]) -> ModelFile:
    place, size, modified = entry.get("pathIndex"), entry.get("size"), entry.get("modified")
    return ModelFile(
        name=str(entry.get("name")),
        place=place if isinstance(place, int) and place >= 0 else 0,
        size_bytes=size if isinstance(size, int) and size > 0 else None,
        modified_at=modified if isinstance(modified, int | float) and modified > 0 else None,
    )
