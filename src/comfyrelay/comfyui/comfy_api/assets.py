"""Upload files to a service as assets, and remember their ids."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from comfyrelay.comfyui.client.uploads import MAX_REMEMBERED_UPLOADS, Attachment, Uploaded, Uploader
from comfyrelay.comfyui.comfy_api.http import ApiHttp
from comfyrelay.comfyui.comfy_api.jobs import asset_reference
from comfyrelay.errors import ServerRefused
from comfyrelay.media_types import guess_media_type
from comfyrelay.system import atomic, files

ASSETS = "/api/v2/assets"


class AssetUploader(Uploader):
    """Upload files as assets, which graphs refer to by their ids.

    The ids of shared files are stored in `ids_file`, so that other processes, and this process after a restart, need
    not upload them again. A file that is missing or belongs to another account is uploaded again.
    """

    def __init__(self, http: ApiHttp, *, ids_file: Path | None = None) -> None:
        super().__init__(http, path=ASSETS, field="file")
        self._ids_file = ids_file

    def forget_uploads(self) -> None:
        super().forget_uploads()
        if self._ids_file is not None:
            with suppress(OSError):
                files.remove(self._ids_file, missing_ok=True)

    async def _reference(self, attachment: Attachment) -> Mapping[str, Any]:
        uploaded = await self._upload_attachment(attachment)
        return asset_reference(uploaded.name)

    async def _send_if_missing(self, source: Path | bytes, wanted: Uploaded) -> Uploaded:
        if self._ids_file is None:
            return await self._send(source, wanted)
        asset_id = _read_ids(self._ids_file).get(wanted.name)
        if isinstance(asset_id, str) and await self._exists(asset_id):
            return Uploaded(name=asset_id)
        uploaded = await self._send(source, wanted)
        _write_id(self._ids_file, wanted.name, uploaded.name)
        return uploaded

    async def _exists(self, asset_id: str) -> bool:
        response = await self._http.send("GET", f"{ASSETS}/{asset_id}")
        return response.is_success

    def _fields(self, wanted: Uploaded) -> dict[str, str]:
        content_type = guess_media_type(wanted.name) or "application/octet-stream"
        return {"content_type": content_type, "file_path": wanted.name}

    def _uploaded(self, answer: Mapping[str, Any]) -> Uploaded:
        if not isinstance(answer.get("id"), str):
            raise ServerRefused("The cloud service accepted the file but did not return its id.")
        return Uploaded(name=answer["id"])


def _read_ids(ids_file: Path) -> dict[str, object]:
    try:
        found = json.loads(ids_file.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write_id(ids_file: Path, stored_name: str, asset_id: str) -> None:
    """Store one id atomically. If this fails or another process overwrites it, the file is uploaded once more."""
    ids = {**_read_ids(ids_file), stored_name: asset_id}
    newest = dict(list(ids.items())[-MAX_REMEMBERED_UPLOADS:])
    with suppress(OSError):
        atomic.write(ids_file, json.dumps(newest).encode())
