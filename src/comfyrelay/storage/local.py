"""Store objects in a local folder. Our own server serves their URLs."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from math import ceil
from pathlib import Path
from urllib.parse import quote

from comfyrelay.clock import utc_now
from comfyrelay.errors import ConfigurationError, InvalidInput
from comfyrelay.storage.folder import Folder, ObjectWriter, disk
from comfyrelay.storage.headers import check_content_type, safe_filename
from comfyrelay.storage.paths import check_path, check_range, too_large
from comfyrelay.storage.signing import UrlGrant, sign, verify
from comfyrelay.storage.threads import in_thread
from comfyrelay.storage.values import ObjectEntry, ObjectStat, SignedUpload

CHUNK_BYTES = 256 * 1024
MIN_SECRET_LENGTH = 16
# Each thread checks many folders, because switching to a thread costs more than checking a folder.
FOLDERS_PER_SWEEP = 100


class Receiver:
    """Receives the chunks of one object, up to its maximum size."""

    def __init__(self, writer: ObjectWriter, *, path: str, size: int | None, max_size: int | None) -> None:
        self._writer = writer
        self._path = path
        self._size = size
        self._limit = min((limit for limit in (size, max_size) if limit is not None), default=None)
        self.received = 0

    async def write(self, piece: bytes) -> None:
        self.received += len(piece)
        if self._limit is not None and self.received > self._limit:
            raise too_large(self._limit)
        with disk(self._path):
            await in_thread(partial(self._writer.write, piece))

    def check_complete(self) -> None:
        """Raise an error if the upload is shorter than announced."""
        if self._size is not None and self.received != self._size:
            raise InvalidInput(f"The upload ended after {self.received} of {self._size} bytes.")


class LocalObjects:
    """Stores objects as files in a folder, which is created on first use.

    Signed URLs need a `base_url` and secrets. The first secret signs URLs; all secrets verify them.
    """

    def __init__(
        self,
        root: Path,
        *,
        base_url: str | None = None,
        secrets: Iterable[str] = (),
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._folder = Folder(root)
        self._base_url = base_url.rstrip("/") if base_url else None
        self._clock = clock
        self.sign_with(secrets)

    def sign_with(self, secrets: Iterable[str]) -> None:
        """Set the secrets that sign URLs."""
        self._secrets = tuple(secrets)
        if any(len(secret) < MIN_SECRET_LENGTH for secret in self._secrets):
            raise ConfigurationError(f"A secret for signed URLs needs at least {MIN_SECRET_LENGTH} characters.")

    async def put(self, path: str, data: bytes) -> None:
        # Not cancellable, because a caller may delete the object after a timeout.
        await in_thread(partial(self._folder.write, path, data))

    async def get(self, path: str) -> bytes:
        return await asyncio.to_thread(self._folder.read, path)

    async def exists(self, path: str) -> bool:
        return await self.stat(path) is not None

    async def stat(self, path: str) -> ObjectStat | None:
        """Return metadata of the object, if it exists. The content type is guessed from its name."""
        # Not in a thread, because switching takes several times as long as `stat`, and every job completion calls this.
        return self._folder.stat(path)

    async def stream(self, path: str, *, start: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        check_range(start, length)
        size = CHUNK_BYTES if length is None else min(CHUNK_BYTES, length)
        # Most files are one chunk, and switching to a thread costs more than reading it.
        file, piece = await in_thread(partial(self._folder.begin, path, start, size))
        try:
            remaining = length
            while piece:
                yield piece
                remaining = None if remaining is None else remaining - len(piece)
                if len(piece) < size or remaining == 0:
                    return
                size = CHUNK_BYTES if remaining is None else min(CHUNK_BYTES, remaining)
                with disk(path):
                    piece = await in_thread(partial(file.read, size))
        finally:
            file.close()

    async def file_of(self, path: str) -> Path | None:
        """Return the object's file, if it exists. Callers may read or link it, but must not modify it."""
        return await asyncio.to_thread(self._folder.file_of, path)

    async def copy(self, source: str, target: str) -> ObjectStat:
        """Copy the object, as a hard link where possible."""
        return await in_thread(partial(self._folder.copy, source, target))

    async def remove(self, path: str) -> None:
        await self.remove_many([path])

    async def remove_many(self, paths: Iterable[str]) -> None:
        await asyncio.to_thread(self._folder.remove, tuple(paths))

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectEntry]:
        waiting = [prefix]
        while waiting:
            entries, folders = await asyncio.to_thread(self._folder.scan, waiting.pop())
            waiting += folders
            for entry in entries:
                yield entry

    async def sign_upload(
        self,
        path: str,
        *,
        content_type: str,
        size: int | None = None,
        max_size: int | None = None,
        ttl_seconds: float,
        once: bool = False,
        for_worker: bool = False,
    ) -> SignedUpload:
        if size is not None and max_size is not None and size > max_size:
            raise too_large(max_size)
        grant = UrlGrant(
            method="PUT",
            path=path,
            expires=self._expiry(ttl_seconds),
            content_type=check_content_type(content_type),
            size=size,
            max_size=max_size,
            once=once,
            for_worker=for_worker,
        )
        return SignedUpload(
            url=self._url(grant),
            headers={"Content-Type": content_type},
            expires_at=datetime.fromtimestamp(grant.expires, UTC),
        )

    async def sign_download(
        self,
        path: str,
        *,
        ttl_seconds: float,
        filename: str | None = None,
        content_type: str | None = None,
        for_worker: bool = False,
    ) -> str:
        if content_type is not None:
            check_content_type(content_type)
        grant = UrlGrant(
            method="GET",
            path=path,
            expires=self._expiry(ttl_seconds),
            content_type=content_type,
            filename=None if filename is None else safe_filename(filename),
            for_worker=for_worker,
        )
        return self._url(grant)

    def verify(self, method: str, path: str, query: Mapping[str, str]) -> UrlGrant:
        """Return what the URL of a request allows, or raise `Forbidden`."""
        return verify(method, path, query, secrets=self._secrets, now=self._clock())

    @asynccontextmanager
    async def receive(
        self, path: str, *, size: int | None = None, max_size: int | None = None, once: bool = False
    ) -> AsyncIterator[Receiver]:
        """Receive an object in chunks. The object becomes visible when the block ends without an error.

        With `once`, raises `Conflict` if the path already has different content.
        """
        writer = self._folder.writer(path)
        receiver = Receiver(writer, path=path, size=size, max_size=max_size)
        try:
            with disk(path):
                await in_thread(writer.open)
            yield receiver
            receiver.check_complete()
            with disk(path):
                await in_thread(partial(self._folder.commit_once, writer) if once else writer.commit)
        except BaseException:
            await in_thread(partial(self._folder.discard, writer))
            raise

    async def sweep(self, *, older_than_seconds: float) -> int:
        """Delete incomplete uploads of killed processes and return their number."""
        waiting, removed = [""], 0

        def sweep_batch() -> int:
            found = 0
            for _ in range(min(len(waiting), FOLDERS_PER_SWEEP)):
                in_folder, folders = self._folder.sweep(waiting.pop(), older_than_seconds=older_than_seconds)
                waiting.extend(folders)
                found += in_folder
            return found

        while waiting:
            removed += await asyncio.to_thread(sweep_batch)
        return removed

    async def origin(self) -> str | None:
        """Return `None`, because our own server serves the URLs under any of its names."""

    async def ensure_cors(self, origins: Sequence[str]) -> None:
        """Do nothing, because the server's setting `allowed_origins` applies."""

    async def check(self) -> None:
        await asyncio.to_thread(self._folder.check)

    def _expiry(self, ttl_seconds: float) -> int:
        return ceil(self._clock().timestamp() + ttl_seconds)

    def _url(self, grant: UrlGrant) -> str:
        check_path(grant.path)
        if self._base_url is None or not self._secrets:
            raise ConfigurationError("URLs of a local folder need a base URL and a secret to sign them with.")
        return f"{self._base_url}/files/{quote(grant.path)}?{sign(grant, secret=self._secrets[0])}"
