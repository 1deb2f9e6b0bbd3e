"""Files: `/upload/image`, `/upload/mask` and `/view`, as in ComfyUI 0.7.0."""

import asyncio
import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path, PureWindowsPath
from typing import Any

from aiohttp import web
from PIL import Image

from comfyrelay.media_types import guess_media_type
from comfyrelay.simulator.folders import safe_join, split_kind
from comfyrelay.simulator.misbehaviour import LostFile
from comfyrelay.simulator.process import SimulatedProcess

# Browsers would execute files of these types, so ComfyUI hides the type.
_UNSAFE_TYPES = frozenset({"text/html", "text/html-sandboxed", "application/xhtml+xml", "text/javascript", "text/css"})


class _Refused(Exception):
    def __init__(self, *, status: int) -> None:
        super().__init__(status)
        self.status = status


class FileRoutes:
    def __init__(self, process: SimulatedProcess) -> None:
        self._process = process
        self._folders = process.folders

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/upload/image", self.upload_image),
            web.post("/upload/mask", self.upload_mask),
            web.get("/view", self.view),
        ]

    async def upload_image(self, request: web.Request) -> web.Response:
        post = await request.post()
        return await asyncio.to_thread(self._upload, post, lambda content, path: path.write_bytes(content))

    async def upload_mask(self, request: web.Request) -> web.Response:
        post = await request.post()
        return await asyncio.to_thread(self._upload, post, lambda content, path: self._save_mask(post, content, path))

    def _upload(self, post: Any, save: Callable[[bytes, Path], object]) -> web.Response:
        image = post.get("image")
        if not image or not image.file or not image.filename:
            return web.Response(status=400)
        kind = post.get("type") or "input"
        root = self._folders.by_type(kind)
        if root is None:
            raise ValueError(f"no folder of type {kind}")
        subfolder = post.get("subfolder", "")
        path = safe_join(root, subfolder, image.filename)
        if path is None:
            return web.Response(status=400)
        if not _is_plain(image.filename):
            # ComfyUI returns 500 for most of these names.
            return web.Response(status=400, text="Name the file without a path. Name its folder in `subfolder`.")
        content = image.file.read()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path, is_new = (path, True) if post.get("overwrite") in ("true", "1") else _free_name(path, content)
            if is_new:
                save(content, path)
                self._process.log.uploads_written += 1
        except OSError as error:
            return web.Response(status=400, text=f"The file cannot be saved under this name: {error.strerror}.")
        return web.json_response({"name": path.name, "subfolder": subfolder, "type": kind})

    def _save_mask(self, post: Any, content: bytes, path: Path) -> None:
        original = json.loads(post["original_ref"])
        try:
            source = self._find(original["filename"], original.get("type", "output"), original.get("subfolder"))
        except _Refused:
            # ComfyUI returns 200 anyway and writes nothing.
            return
        if source.is_file():
            with Image.open(source) as picture, Image.open(BytesIO(content)) as mask:
                masked = picture.convert("RGBA")
                masked.putalpha(mask.convert("RGBA").getchannel("A"))
                masked.save(path, "PNG", compress_level=4)

    async def view(self, request: web.Request) -> web.StreamResponse:
        query = request.query
        if "filename" not in query:
            return web.Response(status=404)
        try:
            path = self._find(query["filename"], query.get("type", "output"), query.get("subfolder"))
        except _Refused as refused:
            return web.Response(status=refused.status)
        lost = self._process.misbehaviours.take(LostFile, matching=lambda what: what.filename in (None, path.name))
        if lost is not None or not _is_file(path):
            return web.Response(status=404)
        headers = {"Content-Disposition": f'filename="{path.name}"'}
        if "preview" in query:
            content, content_type = await asyncio.to_thread(_compress, path, query["preview"])
            return web.Response(body=content, content_type=content_type, headers=headers)
        if (channel := query.get("channel", "rgba")) != "rgba":
            content = await asyncio.to_thread(_channel, path, channel)
            return web.Response(body=content, content_type="image/png", headers=headers)
        guessed = guess_media_type(path.name)
        content_type = "application/octet-stream" if guessed is None or guessed in _UNSAFE_TYPES else guessed
        return web.FileResponse(path, headers={**headers, "Content-Type": content_type})

    def _find(self, name: str, kind: str, subfolder: str | None) -> Path:
        plain, suffix = split_kind(name)
        if not plain or plain.startswith("/") or ".." in plain:
            raise _Refused(status=400)
        root = self._folders.by_type(suffix or kind)
        if root is None:
            raise _Refused(status=400)
        path = safe_join(root, subfolder or "", Path(plain).name)
        if path is None:
            raise _Refused(status=403)
        return path


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        # The name is too long.
        return False


def _is_plain(name: str) -> bool:
    """Whether a name has no folder or drive on any operating system."""
    return PureWindowsPath(name).name == name and name not in ("", ".", "..")


def _free_name(path: Path, content: bytes) -> tuple[Path, bool]:
    """Return a free path and true, or the path of a file with the same content and false."""
    candidate, number = path, 0
    while candidate.exists():
        if candidate.read_bytes() == content:
            return candidate, False
        number += 1
        candidate = path.with_name(f"{path.stem} ({number}){path.suffix}")
    return candidate, True


def _compress(path: Path, wanted: str) -> tuple[bytes, str]:
    kind, _, quality = wanted.partition(";")
    kind = kind if kind in ("webp", "jpeg") else "webp"
    file = BytesIO()
    with Image.open(path) as image:
        picture = image.convert("RGB") if kind == "jpeg" else image
        picture.save(file, kind, quality=int(quality) if quality.isdigit() else 90)
    return file.getvalue(), f"image/{kind}"


def _channel(path: Path, channel: str) -> bytes:
    file = BytesIO()
    with Image.open(path) as image:
        picture = image.convert("RGB")
        if channel == "a":
            alpha = image.convert("RGBA").getchannel("A")
            picture = Image.new("RGBA", image.size)
            picture.putalpha(alpha)
        picture.save(file, "PNG")
    return file.getvalue()
