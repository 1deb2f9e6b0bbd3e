"""Upload files to Comfy Cloud and remember the names it gives them."""

import json
from contextlib import suppress
from pathlib import Path

from comfyrelay.comfyui.client.uploads import MAX_REMEMBERED_UPLOADS, Uploaded, Uploader
from comfyrelay.http_client import Http
from comfyrelay.system import atomic


class CloudUploader(Uploader):
    """Uploader that stores the cloud names of shared files in `names_file`.

    Other processes, and this one after a restart, need not upload these files again. A file that is missing or belongs
    to another account is uploaded again.
    """

    def __init__(self, http: Http, *, path: str, names_file: Path | None = None) -> None:
        super().__init__(http, path=path)
        self._names_file = names_file

    async def _send_if_missing(self, source: Path | bytes, wanted: Uploaded) -> Uploaded:
        if self._names_file is None:
            return await super()._send_if_missing(source, wanted)
        cloud_name = _read_names(self._names_file).get(wanted.name)
        if isinstance(cloud_name, str) and await self._exists(cloud_name):
            return Uploaded(name=cloud_name)
        uploaded = await self._send(source, wanted)
        _write_name(self._names_file, wanted.name, uploaded.reference)
        return uploaded

    async def _exists(self, name: str) -> bool:
        """Whether the service has this file. It redirects to existing files, so there is no need to download them."""
        response = await self._http.send("GET", "/api/view", params={"filename": name, "type": "input"})
        return response.has_redirect_location or response.is_success


def _read_names(names_file: Path) -> dict[str, object]:
    try:
        found = json.loads(names_file.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write_name(names_file: Path, stored_name: str, cloud_name: str) -> None:
    """Store one name atomically. If this fails or another process overwrites it, the file is uploaded once more."""
    names = {**_read_names(names_file), stored_name: cloud_name}
    newest = dict(list(names.items())[-MAX_REMEMBERED_UPLOADS:])
    with suppress(OSError):
        atomic.write(names_file, json.dumps(newest).encode())
