"""Transfer files to and from object storage, with streaming, verification and retries."""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeVar

import httpx
import structlog

from comfyrelay.errors import Fault, TransferFailed
from comfyrelay.http_client import http_client, is_loopback, save
from comfyrelay.protocol.worker import OutputUrl
from comfyrelay.retry import Backoff, Retries

log = structlog.get_logger(__name__)

T = TypeVar("T")

# Storage may take some time to respond after a large file.
_TIMEOUT = httpx.Timeout(connect=10.0, read=120.0, write=120.0, pool=None)
_PIECE = 256 * 1024
_LONGEST_PAUSE_SECONDS = 30.0
_EXPIRED = re.compile(rb"ExpiredToken|AccessDenied|RequestTimeTooSkewed|has expired")
_MAX_REASON_BYTES = 10_000
_BUSY = frozenset({408, 425, 429})


class _TemporaryFailure(Exception):
    """A failed attempt. New URLs may help if storage refused the request (`is_refused`) or if `wants_urls` is set."""

    def __init__(
        self, detail: str, *, is_refused: bool = False, wants_urls: bool = False, wait_seconds: float | None = None
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.is_refused = is_refused
        self.wants_urls = wants_urls
        self.wait_seconds = wait_seconds


class Transfers:
    """`on_bytes` is called for each chunk with "download" or "upload" and its size.

    URLs are read again before each attempt, because heartbeats replace them. After a refusal, `refresh` first gets new
    URLs. No message contains a URL, because URLs are credentials.

    Refusals are retried `retries` times. Unreachable storage is retried longer: `patience_seconds` for an input, and
    `upload_patience_seconds` for an output, which has cost GPU time.
    """

    def __init__(
        self,
        *,
        retries: int = 5,
        first_pause_seconds: float = 0.5,
        patience_seconds: float = 0.0,
        upload_patience_seconds: float = 0.0,
        on_bytes: Callable[[str, int], None] | None = None,
    ) -> None:
        self._retries = retries
        self._first_pause_seconds = first_pause_seconds
        self._patience_seconds = patience_seconds
        self._upload_patience_seconds = upload_patience_seconds
        self._on_bytes = on_bytes or (lambda _direction, _count: None)
        self._client = http_client(timeout=_TIMEOUT)
        # Storage on this machine needs no proxy.
        self._local_client = http_client(timeout=_TIMEOUT, trust_env=False)

    async def close(self) -> None:
        await self._client.aclose()
        await self._local_client.aclose()

    async def download(
        self,
        url: Callable[[], str],
        to: Path,
        *,
        refresh: Callable[[], Awaitable[None]],
        sha256: str | None = None,
    ) -> int:
        """Download a file and return its size. `to` is created only if the file is complete and matches the
        checksum."""

        async def once() -> int:
            # The checksum is that of the stored bytes, so do not accept a content encoding.
            request = self._local_client.build_request("GET", url(), headers={"Accept-Encoding": "identity"})
            response = await self._client_for(request).send(request, stream=True, follow_redirects=True)
            try:
                if not response.is_success:
                    raise await _failure(response, what="The input could not be fetched")
                return await save(self._checked(response, sha256), to)
            finally:
                await response.aclose()

        try:
            await asyncio.to_thread(to.parent.mkdir, parents=True, exist_ok=True)
            return await self._retry(once, refresh, what="The input could not be fetched")
        except OSError as error:
            raise TransferFailed(f"The input cannot be written on the worker: {error.strerror or error}.") from error

    async def upload(
        self, source: Path, target: Callable[[], OutputUrl], *, refresh: Callable[[], Awaitable[None]]
    ) -> None:
        """Upload a file to its URL with the signed headers."""

        async def once() -> None:
            to = target()
            # S3 requires a content length.
            size = (await asyncio.to_thread(source.stat)).st_size
            headers = {**to.headers, "Content-Length": str(size)}
            request = self._local_client.build_request("PUT", to.url, headers=headers, content=self._pieces(source))
            # Redirects are not followed, because the body has been consumed by then.
            response = await self._client_for(request).send(request)
            if not response.is_success:
                raise await _failure(response, what="The output could not be stored")

        try:
            await self._retry(once, refresh, what="The output could not be stored", is_upload=True)
        except OSError as error:
            raise TransferFailed(f"The output cannot be read on the worker: {error.strerror or error}.") from error

    async def put(self, data: bytes, url: str, headers: Mapping[str, str], *, seconds: float) -> None:
        """Upload a few bytes without retries. Raises `TransferFailed` on failure."""
        request = self._local_client.build_request("PUT", url, headers=dict(headers), content=data, timeout=seconds)
        try:
            async with asyncio.timeout(seconds):
                response = await self._client_for(request).send(request)
        except (TimeoutError, httpx.HTTPError) as error:
            raise TransferFailed(f"It could not be stored: {type(error).__name__}.") from None
        self._on_bytes("upload", len(data))
        if not response.is_success:
            raise TransferFailed(f"It could not be stored: storage answered with {response.status_code}.")

    async def _retry(
        self,
        once: Callable[[], Awaitable[T]],
        refresh: Callable[[], Awaitable[None]],
        *,
        what: str,
        is_upload: bool = False,
    ) -> T:
        loop = asyncio.get_running_loop()
        patient_until = loop.time() + (self._upload_patience_seconds if is_upload else self._patience_seconds)
        retries = Retries(Backoff(first_seconds=self._first_pause_seconds, max_seconds=_LONGEST_PAUSE_SECONDS))
        while True:
            try:
                return await once()
            except _TemporaryFailure as error:
                failure = error
            except httpx.TransportError as error:
                # Storage that refuses a large upload may close the connection early, so newer URLs may help.
                may_be_refused = is_upload and not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
                failure = _TemporaryFailure(f"{what}: {_explain(error)}.", wants_urls=may_be_refused)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise TransferFailed(f"{what}: {type(error).__name__}.") from None
            if retries.failures >= self._retries and (failure.is_refused or loop.time() >= patient_until):
                raise TransferFailed(failure.detail)
            log.info("transfer.retried", why=failure.detail, attempt=retries.failures + 1)
            if failure.is_refused or failure.wants_urls:
                await refresh()
            await retries.wait(at_least=min(failure.wait_seconds or 0.0, _LONGEST_PAUSE_SECONDS))

    async def _checked(self, response: httpx.Response, sha256: str | None) -> AsyncIterator[bytes]:
        digest = hashlib.sha256()
        async for piece in response.aiter_raw(_PIECE):
            digest.update(piece)
            self._on_bytes("download", len(piece))
            yield piece
        if sha256 is not None and digest.hexdigest() != sha256:
            raise _TemporaryFailure("The input could not be fetched: its content does not match the checksum.")

    async def _pieces(self, source: Path) -> AsyncIterator[bytes]:
        with source.open("rb") as file:
            # Not in a thread: the file was just written, so reading from the page cache is faster.
            while piece := file.read(_PIECE):
                yield piece
                self._on_bytes("upload", len(piece))

    def _client_for(self, request: httpx.Request) -> httpx.AsyncClient:
        return self._local_client if is_loopback(request.url.host) else self._client


async def _failure(response: httpx.Response, *, what: str) -> Exception:
    status = response.status_code
    detail = f"{what}: storage answered with {status}."
    if status in (401, 403) or (status == 400 and await _has_expired(response)):
        return _TemporaryFailure(detail, is_refused=True)
    if status in _BUSY or response.is_server_error:
        wait = response.headers.get("Retry-After", "")
        return _TemporaryFailure(detail, wait_seconds=float(wait) if wait.isdecimal() else None)
    if status in (404, 410) and response.request.method == "GET":
        return TransferFailed("An input of the job is no longer in storage.", fault=Fault.JOB)
    return TransferFailed(detail)


async def _has_expired(response: httpx.Response) -> bool:
    """Whether a 400 means an expired URL, as on some stores and with AWS's temporary keys."""
    async for start in response.aiter_bytes(_MAX_REASON_BYTES):
        return _EXPIRED.search(start) is not None
    return False


def _explain(error: httpx.TransportError) -> str:
    match error:
        case httpx.ConnectError() | httpx.ConnectTimeout():
            return "storage cannot be reached"
        case httpx.TimeoutException():
            return "storage does not answer"
        case _:
            return "the connection was lost"
