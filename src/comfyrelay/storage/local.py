"""Object storage in a local folder, with URLs of our own server."""

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
from comfyrelay.storage.folder import Folder, disk
from comfyrelay.storage.headers import check_content_type, safe_filename
from comfyrelay.storage.paths import check_path, check_range
from comfyrelay.storage.signing import UrlGrant, sign, verify
from comfyrelay.storage.threads import in_thread
from comfyrelay.storage.upload_stream import Receiver
from comfyrelay.storage.values import ObjectEntry, ObjectStat, SignedUpload

PIECE_BYTES = 256 * 1024
SHORTEST_SECRET = 16
SWEPT_AT_ONCE = 100


class LocalObjects:
    """Objects as files in a folder that is created on first use.

    URLs need a `base_url` and secrets: the first secret signs, all of them verify.
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
        self._secrets = tuple(secrets)
        self._clock = clock
        if any(len(secret) < SHORTEST_SECRET for secret in self._secrets):
            raise ConfigurationError(f"A secret for signed URLs needs at least {SHORTEST_SECRET} characters.")

    async def put(self, path: str, data: bytes) -> None:
        # not cancellable: a caller that deletes it after a timeout must not find it written later
        await in_thread(partial(self._folder.write, path, data))

    async def get(self, path: str) -> bytes:
        return await asyncio.to_thread(self._folder.read, path)

    async def exists(self, path: str) -> bool:
        return await self.stat(path) is not None

    async def stat(self, path: str) -> ObjectStat | None:
        """Return metadata of the object, if it exists; its content type is guessed from its name."""
        return await asyncio.to_thread(self._folder.stat, path)

    async def stream(self, path: str, *, start: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        check_range(start, length)
        size = PIECE_BYTES if length is None else min(PIECE_BYTES, length)
        # most files are one chunk, and a thread costs more than reading it
        file, piece = await in_thread(partial(self._folder.begin, path, start, size))
        try:
            remaining = length
            while piece:
                yield piece
                remaining = None if remaining is None else remaining - len(piece)
                if len(piece) < size or remaining == 0:
                    return
                size = PIECE_BYTES if remaining is None else min(PIECE_BYTES, remaining)
                with disk(path):
                    piece = await in_thread(partial(file.read, size))
        finally:
            file.close()

    async def file_of(self, path: str) -> Path | None:
        """The object's file on this machine, if it exists: to link to, never to modify."""
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
        self, path: str, *, content_type: str, size: int | None = None, max_size: int | None = None, ttl_seconds: float
    ) -> SignedUpload:
        if size is not None and max_size is not None and size > max_size:
            raise InvalidInput(f"The upload is too large: at most {max_size} bytes are allowed.")
        grant = UrlGrant(
            method="PUT",
            path=path,
            expires=self._expiry(ttl_seconds),
            content_type=check_content_type(content_type),
            size=size,
            max_size=max_size,
        )
        return SignedUpload(
            url=self._url(grant),
            headers={"Content-Type": content_type},
            expires_at=datetime.fromtimestamp(grant.expires, UTC),
        )

    async def sign_download(
        self, path: str, *, ttl_seconds: float, filename: str | None = None, content_type: str | None = None
    ) -> str:
        if content_type is not None:
            check_content_type(content_type)
        grant = UrlGrant(
            method="GET",
            path=path,
            expires=self._expiry(ttl_seconds),
            content_type=content_type,
            filename=None if filename is None else safe_filename(filename),
        )
        return self._url(grant)

    def verify(self, method: str, path: str, query: Mapping[str, str]) -> UrlGrant:
        """Return what the URL of a request allows, or raise `Forbidden`."""
        return verify(method, path, query, secrets=self._secrets, now=self._clock())

    @asynccontextmanager
    async def receive(
        self, path: str, *, size: int | None = None, max_size: int | None = None
    ) -> AsyncIterator[Receiver]:
        """Receive an object in chunks. It appears when the block ends without an error; otherwise nothing is left."""
        writer = self._folder.writer(path)
        receiver = Receiver(writer, path=path, size=size, max_size=max_size)
        try:
            with disk(path):
                await in_thread(writer.open)
            yield receiver
            receiver.check_complete()
            with disk(path):
                await in_thread(writer.commit)
        except BaseException:
            await in_thread(partial(self._folder.discard, writer))
            raise

    async def sweep(self, *, older_than_seconds: float) -> int:
        """Delete the incomplete uploads of killed processes. Returns their number."""
        waiting, removed = [""], 0

        def some() -> int:
            """Scan in batches: switching to a thread costs more than one check."""
            found = 0
            for _ in range(min(len(waiting), SWEPT_AT_ONCE)):
                here, folders = self._folder.sweep(waiting.pop(), older_than_seconds=older_than_seconds)
                waiting.extend(folders)
                found += here
            return found

        while waiting:
            removed += await asyncio.to_thread(some)
        return removed

    async def origin(self) -> str | None:
        """None: our own server serves them under any of its names."""

    async def ensure_cors(self, origins: Sequence[str]) -> None:
        """Nothing to do: our own server's settings decide."""

    async def check(self) -> None:
        await asyncio.to_thread(self._folder.check)

    def _expiry(self, ttl_seconds: float) -> int:
        return ceil(self._clock().timestamp() + ttl_seconds)

    def _url(self, grant: UrlGrant) -> str:
        check_path(grant.path)
        if self._base_url is None or not self._secrets:
            raise ConfigurationError("URLs of a local folder need a base URL and a secret to sign them with.")
        return f"{self._base_url}/files/{quote(grant.path)}?{sign(grant, secret=self._secrets[0])}"
