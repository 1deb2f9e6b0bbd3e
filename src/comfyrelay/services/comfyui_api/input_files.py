"""The files that graphs name: uploads by their name, and outputs by their prompt and name."""

from collections.abc import Collection, Mapping
from pathlib import PurePosixPath
from typing import BinaryIO, NamedTuple

from comfyrelay.comfyui.graphs.preflight import file_query
from comfyrelay.domain.records.accounts import User
from comfyrelay.domain.records.jobs import FileRecord
from comfyrelay.domain.uploads import AnnouncedUpload
from comfyrelay.services.comfyui_api.prompts import Prompts
from comfyrelay.services.databases import Databases
from comfyrelay.services.jobs.uploads import Uploads
from comfyrelay.store.tenant.library import media
from comfyrelay.text import is_storable

# The maximum number of uploads in the lists of nodes that load files.
MAX_LISTED = 1000
MAX_NAME_LENGTH = 255
# `photo (1).png`, `photo (2).png`, and so on.
MAX_NUMBER = 100


class ReceivedFile(NamedTuple):
    """An upload that this process has received. `subfolder` may be empty and has no trailing slash."""

    name: str
    subfolder: str
    mime_type: str
    size: int
    blake3: str

    @property
    def path(self) -> str:
        return f"{self.subfolder}/{self.name}" if self.subfolder else self.name


class InputFiles:
    def __init__(self, databases: Databases, uploads: Uploads, prompts: Prompts) -> None:
        self._databases = databases
        self._uploads = uploads
        self._prompts = prompts

    async def receive(self, user: User, new: ReceivedFile, content: BinaryIO, *, overwrite: bool) -> str:
        """Store an upload and return its path. As in ComfyUI, if the path is taken by other content, the name gets a
        number, and equal content is stored once."""
        path = new.path
        stem, suffix = PurePosixPath(new.name).stem, PurePosixPath(new.name).suffix
        numbered = [new._replace(name=f"{stem} ({number}){suffix}").path for number in range(1, MAX_NUMBER)]
        async with (await self._databases.shard_of(user.tenant_id)).read() as tx:
            known = await media.by_names(tx, user.tenant_id, [path, *numbered])
        for candidate in [path, *numbered]:
            if candidate in known and known[candidate].blake3 == new.blake3:
                return candidate
            if candidate not in known or overwrite:
                path = candidate
                break
        announced = AnnouncedUpload(mime_type=new.mime_type, size=new.size, original_filename=path)
        await self._uploads.receive(user, announced, content, blake3=new.blake3)
        return path

    async def names(self, tenant_id: str) -> Mapping[str, str]:
        """Return the paths of the newest uploads, with the media type of each."""
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            return await media.upload_names(tx, tenant_id, limit=MAX_LISTED)

    async def find(self, tenant_id: str, *, name: str, subfolder: str, kind: str) -> FileRecord | None:
        """Return the file that `/view` names; `None` if the caller has no such file."""
        if not _is_path(name) or (subfolder and not _is_path(subfolder)):
            return None
        if kind in ("output", "temp") and subfolder:
            found = await self._prompts.output_file(tenant_id, subfolder, name)
            if found is not None or kind == "output":
                return found
        path = f"{subfolder}/{name}" if subfolder else name
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            return (await media.by_names(tx, tenant_id, [path])).get(path) if kind != "output" else None

    async def resolve(self, tenant_id: str, names: Collection[str]) -> dict[str, str]:
        """Return the ids of the caller's files by their name in a graph, such as `a.png` or `prompt/a.png [output]`."""
        found: dict[str, str] = {}
        uploads: dict[str, str] = {}
        for name in names:
            place = file_query(name)
            if not _is_path(place["filename"]):
                continue
            if place["type"] == "output":
                file = await self.find(
                    tenant_id, name=place["filename"], subfolder=place["subfolder"], kind=place["type"]
                )
                found |= {name: file.id} if file is not None else {}
            else:
                uploads[name] = "/".join(filter(None, (place["subfolder"], place["filename"])))
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            files = await media.by_names(tx, tenant_id, set(uploads.values()))
        return found | {name: files[path].id for name, path in uploads.items() if path in files}


def _is_path(text: str) -> bool:
    return bool(text) and len(text) <= 2 * MAX_NAME_LENGTH and is_storable(text)
