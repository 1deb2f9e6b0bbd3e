"""Upload and download files with signed URLs, in chunks. A file is transferred completely or not at all."""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx

from comfyrelay.errors import InvalidInput, TransferFailed
from comfyrelay.http_client import http_client, is_loopback, save
from comfyrelay.media_types import guess_media_type
from comfyrelay.protocol.jobs import Output
from comfyrelay.system.safe_names import usable_name

_TIMEOUT = httpx.Timeout(connect=10.0, read=120.0, write=120.0, pool=None)
_CHUNK_BYTES = 256 * 1024
_SHA256 = re.compile(r"[0-9a-f]{64}")


class LinkExpired(TransferFailed):
    """The signed URL of this file has expired."""


class Files:
    """Transfers files without the API token, because storage is another service, and S3 accepts only one credential."""

    def __init__(self) -> None:
        # The key is whether storage is on this machine. Clients are created on first use, because most callers transfer
        # nothing, and each client loads all certificates.
        self._clients: dict[bool, httpx.AsyncClient] = {}

    async def close(self) -> None:
        for client in self._clients.values():
            await client.aclose()

    async def send(self, path: Path, url: str, *, headers: dict[str, str], size: int) -> None:
        # S3 requires a known length.
        headers = {**headers, "Content-Length": str(size)}
        try:
            response = await self._client_for(url).put(url, headers=headers, content=_chunks(path, size))
        except httpx.HTTPError as error:
            raise TransferFailed(f"{path.name} could not be sent: the connection to storage was lost.") from error
        if not response.is_success:
            raise TransferFailed(f"{path.name} could not be sent: storage answered with {response.status_code}.")

    async def fetch(self, output: Output, to: Path, *, through: httpx.AsyncClient | None = None) -> Path:
        """Download a file, which appears under its name only when it is complete. `through` is the client of the API,
        for files that the API itself serves."""
        failure = f"{output.filename} could not be downloaded"
        # The checksum is of the stored bytes, so they must not be compressed.
        headers = {"Accept-Encoding": "identity"}
        try:
            await asyncio.to_thread(to.parent.mkdir, parents=True, exist_ok=True)
            client = through or self._client_for(output.url)
            async with client.stream("GET", output.url, headers=headers) as response:
                if response.status_code in (400, 401, 403):
                    raise LinkExpired(f"{failure}: storage answered with {response.status_code}.")
                if not response.is_success:
                    raise TransferFailed(f"{failure}: storage answered with {response.status_code}.")
                await save(_verified(response, output, failure), to)
        except httpx.HTTPError as error:
            raise TransferFailed(f"{failure}: the connection to storage was lost.") from error
        except OSError as error:
            raise TransferFailed(f"{to} cannot be written: {error.strerror or error}.") from error
        return to

    def _client_for(self, url: str) -> httpx.AsyncClient:
        is_local = is_loopback(httpx.URL(url).host)
        if is_local not in self._clients:
            # Storage on this machine is called without a proxy.
            self._clients[is_local] = http_client(timeout=_TIMEOUT, trust_env=not is_local)
        return self._clients[is_local]


def media_type(path: Path) -> str:
    """Return the media type of a file from its name. Raises `InvalidInput` for other kinds of files."""
    found = guess_media_type(path.name) or ""
    if not found.startswith(("image/", "video/", "audio/")):
        raise InvalidInput(f"{path.name} does not look like an image, video or audio file.")
    return found


def safe_name(name: str) -> str:
    """Return the last part of a name, so that a server cannot make the client write outside the folder."""
    last = re.split(r"[\\/]", name.replace("\0", ""))[-1].strip()
    return usable_name(last) if last.strip(".") else "output"


async def _chunks(path: Path, size: int) -> AsyncIterator[bytes]:
    remaining = size
    with path.open("rb") as file:
        # Reading a chunk of a local file is faster than a thread switch.
        while remaining and (chunk := file.read(min(_CHUNK_BYTES, remaining))):
            remaining -= len(chunk)
            yield chunk
    if remaining:
        raise TransferFailed(f"{path.name} became shorter during the upload.")


async def _verified(response: httpx.Response, output: Output, failure: str) -> AsyncIterator[bytes]:
    """Yield the body, and raise an error at its end if its size or checksum is wrong."""
    digest, size = hashlib.sha256(), 0
    async for chunk in response.aiter_raw(_CHUNK_BYTES):
        digest.update(chunk)
        size += len(chunk)
        yield chunk
    expected = output.content_hash or ""
    if output.size not in (None, size) or (_SHA256.fullmatch(expected) and digest.hexdigest() != expected):
        raise TransferFailed(f"{failure}: the received data differs from the stored file.")
