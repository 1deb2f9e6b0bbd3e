"""HTTP to a server: what fails below the protocol becomes one of our errors, and nothing else does."""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from comfyrelay.error_text import user_sentence
from comfyrelay.errors import ComfyError, ConfigurationError, Fault, ServerRefused, ServerUnreachable

__all__ = ["Http", "PortClosed", "save"]

# Reading is patient: a server that loads a model may not answer for a while.
_TIMEOUT = httpx.Timeout(connect=5.0, read=30.0, write=120.0, pool=None)
_PIECE = 256 * 1024


class PortClosed(ServerUnreachable):
    """Nobody listens at this address: the server is not running, or still starting."""


class Http:
    """A connection pool to one server. Follows no redirects, so a key is never sent elsewhere."""

    def __init__(self, url: str, *, headers: Mapping[str, str] | None = None) -> None:
        self.url = checked_url(url)
        self._client = httpx.AsyncClient(base_url=self.url, headers=dict(headers or {}), timeout=_TIMEOUT)

    async def close(self) -> None:
        await self._client.aclose()

    async def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request; any answer is an answer. `ServerUnreachable` when there is none."""
        with_url = f"{self.url}{path}"
        try:
            return await self._client.request(method, with_url, **options)
        except httpx.HTTPError as error:
            raise self.unreachable(error) from error

    async def json(self, method: str, path: str, **options: Any) -> Any:
        """Send a request and read the JSON of a good answer; `ServerRefused` for any other."""
        response = await self.send(method, path, **options)
        if response.is_success:
            try:
                return response.json()
            except ValueError:
                raise ServerRefused(f"{self.url} does not speak like ComfyUI: {path} gave no JSON.") from None
        raise self.refused(response)

    async def tell(self, path: str, body: Mapping[str, Any]) -> None:
        """Post something whose answer has no body."""
        response = await self.send("POST", path, json=body)
        if not response.is_success:
            raise self.refused(response)

    @asynccontextmanager
    async def stream(self, method: str, url: str, **options: Any) -> AsyncIterator[httpx.Response]:
        """Open an answer to be read in pieces."""
        try:
            async with self._client.stream(method, url if "://" in url else f"{self.url}{url}", **options) as response:
                yield response
        except httpx.HTTPError as error:
            raise self.unreachable(error) from error

    def unreachable(self, error: httpx.HTTPError) -> ServerUnreachable:
        if isinstance(error, httpx.ConnectError):
            return PortClosed(f"Nobody answers at {self.url}: is ComfyUI running there?", raw=repr(error))
        return ServerUnreachable(f"The server at {self.url} does not answer.", raw=repr(error))

    def refused(self, response: httpx.Response) -> ComfyError:
        status, text = response.status_code, response.text[:2000]
        if status == 413:
            what = "The request is larger than the server allows: start ComfyUI with a larger --max-upload-size."
            return ServerRefused(what, fault=Fault.JOB, raw=text)
        if status in (401, 403):
            what = f"The server at {self.url} does not let us in ({status}): check the address, proxy and key."
            return ServerRefused(what, raw=text)
        path = response.request.url.path
        return ServerRefused(f"The server answered {path} with {status}: {user_sentence(text)}", raw=text)


async def save(pieces: AsyncIterator[bytes], to: Path) -> int:
    """Write a stream to a file that appears only when it is whole. Returns its size."""
    part = to.with_name(f".{to.name}.{os.getpid()}.part")
    size = 0
    try:
        with part.open("wb") as file:
            async for piece in pieces:
                # a write goes to the page cache: shorter than handing it to a thread
                size += file.write(piece)
        part.replace(to)
    finally:
        part.unlink(missing_ok=True)
    return size


async def body_of(response: httpx.Response) -> AsyncIterator[bytes]:
    async for piece in response.aiter_bytes(_PIECE):
        yield piece


def checked_url(url: str) -> str:
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError(f"Not the address of a ComfyUI server: {url!r}. Write it like http://127.0.0.1:8188.")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
