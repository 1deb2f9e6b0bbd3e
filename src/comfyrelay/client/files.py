"""Upload and download files with signed URLs: in chunks, complete or not at all."""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx

from comfyrelay.errors import InvalidInput, TransferFailed
from comfyrelay.http_client import is_loopback, save
from comfyrelay.media_types import guess_media_type
from comfyrelay.protocol.jobs import Output
from comfyrelay.system.safe_names import usable_name

_TIMEOUT = httpx.Timeout(connect=10.0, read=120.0, write=120.0, pool=None)
_PIECE = 256 * 1024
_SHA256 = re.compile(r"[0-9a-f]{64}")


class LinkExpired(TransferFailed):
    """The signed URL of this file has expired."""


class Files:
    """A client without the API token: storage is another service, and S3 accepts only one credential."""

    def __init__(self) -> None:
        self._there = httpx.AsyncClient(timeout=_TIMEOUT)
        # proxies are for other machines
        self._here = httpx.AsyncClient(timeout=_TIMEOUT, trust_env=False)

    async def close(self) -> None:
        await self._there.aclose()
        await self._here.aclose()

    async def send(self, path: Path, url: str, *, headers: dict[str, str], size: int) -> None:
        # S3 requires a known length
        headers = {**headers, "Content-Length": str(size)}
        try:
            response = await self._for(url).put(url, headers=headers, content=_pieces(path, size))
        except httpx.HTTPError as error:
            raise TransferFailed(f"{path.name} could not be sent: the connection to storage was lost.") from error
        if not response.is_success:
            raise TransferFailed(f"{path.name} could not be sent: storage answered with {response.status_code}.")

    async def fetch(self, output: Output, to: Path, *, through: httpx.AsyncClient | None = None) -> Path:
        """The file appears under its name only when it is complete. Files of the API itself are fetched with its
        client."""
        what = f"{output.filename} could not be fetched"
        # uncompressed, because the checksum is of the stored bytes
        headers = {"Accept-Encoding": "identity"}
        try:
            await asyncio.to_thread(to.parent.mkdir, parents=True, exist_ok=True)
            client = through or self._for(output.url)
            async with client.stream("GET", output.url, headers=headers) as response:
                if response.status_code in (400, 401, 403):
                    raise LinkExpired(f"{what}: storage answered with {response.status_code}.")
                if not response.is_success:
                    raise TransferFailed(f"{what}: storage answered with {response.status_code}.")
                await save(_checked(response, output, what), to)
        except httpx.HTTPError as error:
            raise TransferFailed(f"{what}: the connection to storage was lost.") from error
        except OSError as error:
            raise TransferFailed(f"{to} cannot be written: {error.strerror or error}.") from error
        return to

    def _for(self, url: str) -> httpx.AsyncClient:
        return self._here if is_loopback(httpx.URL(url).host) else self._there


def media_type(path: Path) -> str:
    """The media type by file name."""
    found = guess_media_type(path.name) or ""
    if not found.startswith(("image/", "video/", "audio/")):
        raise InvalidInput(f"{path.name} does not look like an image, a video or audio.")
    return found


def safe_name(name: str) -> str:
    """The last part of a name, so that a server cannot write outside of the folder."""
    last = re.split(r"[\\/]", name.replace("\0", ""))[-1].strip()
    return usable_name(last) if last.strip(".") else "output"


async def _pieces(path: Path, size: int) -> AsyncIterator[bytes]:
    left = size
    with path.open("rb") as file:
        # a local file: reading a chunk is faster than a switch of threads
        while left and (piece := file.read(min(_PIECE, left))):
            left -= len(piece)
            yield piece
    if left:
        raise TransferFailed(f"{path.name} became shorter while it was sent.")


async def _checked(response: httpx.Response, output: Output, what: str) -> AsyncIterator[bytes]:
    digest, size = hashlib.sha256(), 0
    async for piece in response.aiter_raw(_PIECE):
        digest.update(piece)
        size += len(piece)
        yield piece
    # before the file appears
    wanted = output.content_hash or ""
    if output.size not in (None, size) or (_SHA256.fullmatch(wanted) and digest.hexdigest() != wanted):
        raise TransferFailed(f"{what}: what came is not what was stored.")
