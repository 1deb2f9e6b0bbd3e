"""Files on their way to Comfy Cloud, which names them itself: what it called them is written down for later."""

import json
from contextlib import suppress
from pathlib import Path

from comfyrelay.comfyui.client.uploads import MOST_KNOWN, Uploaded, Uploader
from comfyrelay.http_client import Http
from comfyrelay.system import atomic


class CloudUploader(Uploader):
    """`kept` is a file with the names that shared files have there, so that another process, or this one after a
    restart, need not upload them again. What is not there any more, or belongs to another account, is uploaded."""

    def __init__(self, http: Http, *, path: str, kept: Path | None = None) -> None:
        super().__init__(http, path=path)
        self._kept = kept

    async def _share(self, source: Path | bytes, wanted: Uploaded) -> Uploaded:
        if self._kept is None:
            return await super()._share(source, wanted)
        theirs = _read(self._kept).get(wanted.name)
        if isinstance(theirs, str) and await self._is_there(theirs):
            return Uploaded(name=theirs)
        uploaded = await self._send(source, wanted)
        _write(self._kept, wanted.name, uploaded.reference)
        return uploaded

    async def _is_there(self, name: str) -> bool:
        """A file that is there is sent from another place; the way there is enough to know it."""
        response = await self._http.send("GET", "/api/view", params={"filename": name, "type": "input"})
        return response.has_redirect_location or response.is_success


def _read(kept: Path) -> dict[str, object]:
    try:
        found = json.loads(kept.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(kept: Path, ours: str, theirs: str) -> None:
    """All or nothing. What cannot be written, or is overwritten by another process, only costs another upload."""
    names = {**_read(kept), ours: theirs}
    newest = dict(list(names.items())[-MOST_KNOWN:])
    with suppress(OSError):
        atomic.write(kept, json.dumps(newest).encode())
