"""The interface of object storage, and the function that opens a store by its URL."""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol
from urllib.parse import SplitResult, unquote, urlsplit

from comfyrelay.clock import utc_now
from comfyrelay.errors import ConfigurationError
from comfyrelay.extras import require
from comfyrelay.storage.local import LocalObjects
from comfyrelay.storage.values import ObjectEntry, ObjectStat, SignedUpload
from comfyrelay.system.safe_names import path_of_url

__all__ = ["LocalObjects", "ObjectEntry", "ObjectStat", "ObjectStore", "SignedUpload", "open_objects"]


class ObjectStore(Protocol):
    """Bytes under relative paths (`tenants/7/inputs/a.png`).

    Raises `InvalidInput` for a path that could escape the store, `StorageUnavailable` if the store is unreachable, and
    `ConfigurationError` if it is misconfigured.
    """

    async def put(self, path: str, data: bytes) -> None:
        """Store the data. Readers see either the old object or the new one, never a part."""

    async def get(self, path: str) -> bytes:
        """Return the data, or raise `NotFound`."""
        ...

    async def exists(self, path: str) -> bool: ...

    async def stat(self, path: str) -> ObjectStat | None:
        """Return metadata of the object, if it exists."""
        ...

    def stream(self, path: str, *, start: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Yield the data or a range in chunks. The first step raises `NotFound` if the object does not exist."""
        ...

    async def copy(self, source: str, target: str) -> ObjectStat:
        """Copy inside the store and return metadata of the copy, or raise `NotFound`.

        Later changes of `source` do not affect the copy.
        """
        ...

    async def remove(self, path: str) -> None:
        """Delete the object, if it exists."""

    async def remove_many(self, paths: Iterable[str]) -> None:
        """Delete the objects that exist."""

    def list(self, prefix: str = "") -> AsyncIterator[ObjectEntry]:
        """Yield the objects below a folder, or all objects, unordered."""
        ...

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
        """Return a URL that accepts an upload of this type, and of this size if given.

        With `once`, the URL cannot replace an existing object, but a few S3 servers cannot enforce this. Only our own
        server enforces `max_size`: with S3, check the size after the upload. `for_worker` marks the URLs of a lease,
        because our own server counts connections of workers separately.
        """
        ...

    async def sign_download(
        self,
        path: str,
        *,
        ttl_seconds: float,
        filename: str | None = None,
        content_type: str | None = None,
        for_worker: bool = False,
    ) -> str:
        """Return a URL for the object. With a file name, browsers save the object under that name."""
        ...

    async def origin(self) -> str | None:
        """Return the origin of signed URLs; `None` if our own server serves them."""
        ...

    async def ensure_cors(self, origins: Sequence[str]) -> None:
        """Allow pages of these origins to upload and download."""

    async def check(self) -> None:
        """Raise an error if the store is unusable."""


def open_objects(
    url: str,
    *,
    base_url: str | None = None,
    secrets: Iterable[str] = (),
    clock: Callable[[], datetime] = utc_now,
) -> ObjectStore:
    """Open the object storage at this URL. A local folder needs the other arguments to sign URLs."""
    parts = urlsplit(url)
    match parts.scheme:
        case "file":
            if (path := path_of_url(url)) is None:
                raise ConfigurationError("A file URL for object storage must name a folder: file:///absolute/path.")
            return LocalObjects(Path(path), base_url=base_url, secrets=secrets, clock=clock)
        case "s3":
            return _open_bucket(parts)
        case scheme:
            raise ConfigurationError(
                f"Object storage of scheme {scheme!r} is not supported. Use file:///absolute/path or s3://bucket/prefix."
            )


def _open_bucket(parts: SplitResult) -> ObjectStore:
    # The URL may contain a secret, so the messages omit it.
    if not parts.netloc:
        raise ConfigurationError("An S3 URL for object storage must name a bucket: s3://bucket/prefix.")
    if "@" in parts.netloc or ":" in parts.netloc:
        raise ConfigurationError(
            "An S3 URL for object storage contains only a bucket and a prefix: s3://bucket/prefix. Set the rest with "
            "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL."
        )
    require("s3")
    # Importing boto3 takes 0.2 s, and local storage does not need it.
    from comfyrelay.storage.s3 import S3Objects  # noqa: PLC0415

    return S3Objects(parts.netloc, unquote(parts.path))
