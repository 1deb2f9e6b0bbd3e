"""Object storage behind one small port."""

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

    A path that could lead elsewhere raises `InvalidInput`; a store that cannot be reached `StorageUnavailable`; one
    that is set up wrongly `ConfigurationError`.
    """

    async def put(self, path: str, data: bytes) -> None:
        """Store the data; readers see the old object or the new one, never a part."""

    async def get(self, path: str) -> bytes:
        """Return the data, or raise `NotFound`."""
        ...

    async def exists(self, path: str) -> bool:
        """Whether there is an object at this path."""
        ...

    async def stat(self, path: str) -> ObjectStat | None:
        """Return what is known of the object, if it is there."""
        ...

    def stream(self, path: str, *, start: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Yield the data, or a part of it, in pieces; the first step raises `NotFound` when there is none."""
        ...

    async def copy(self, source: str, target: str) -> ObjectStat:
        """Copy inside the store, as it is at this moment, and return what is known of the copy; `NotFound` when there
        is nothing to copy.

        What is put at `source` later does not change the copy.
        """
        ...

    async def remove(self, path: str) -> None:
        """Remove the object; nothing happens when there is none."""

    async def remove_many(self, paths: Iterable[str]) -> None:
        """Remove all these objects; missing ones are fine."""

    def list(self, prefix: str = "") -> AsyncIterator[ObjectEntry]:
        """Yield the objects below this folder (all of them without one), in no order."""
        ...

    async def sign_upload(
        self, path: str, *, content_type: str, size: int | None = None, max_size: int | None = None, ttl_seconds: float
    ) -> SignedUpload:
        """Return a URL that takes one object of this type, and of this size where it is known.

        Only our own server holds an upload to `max_size`; S3 cannot, so look at the size when it is there.
        """
        ...

    async def sign_download(
        self, path: str, *, ttl_seconds: float, filename: str | None = None, content_type: str | None = None
    ) -> str:
        """Return a URL that gives the object; with a file name, browsers save it under that name."""
        ...

    async def origin(self) -> str | None:
        """The origin of its URLs; none where our own server serves them."""
        ...

    async def ensure_cors(self, origins: Sequence[str]) -> None:
        """Let pages of these origins upload and download."""

    async def check(self) -> None:
        """Raise when the store cannot be used, saying why."""


def open_objects(
    url: str,
    *,
    base_url: str | None = None,
    secrets: Iterable[str] = (),
    clock: Callable[[], datetime] = utc_now,
) -> ObjectStore:
    """Open the object storage at this URL; a local folder needs the rest to make URLs of its own."""
    parts = urlsplit(url)
    match parts.scheme:
        case "file":
            return LocalObjects(_folder(url), base_url=base_url, secrets=secrets, clock=clock)
        case "s3":
            return _open_bucket(parts, clock)
        case scheme:
            raise ConfigurationError(
                f"Object storage of scheme {scheme!r} is not supported. Use file:///absolute/path or s3://bucket/prefix."
            )


def _folder(url: str) -> Path:
    if (path := path_of_url(url)) is None:
        raise ConfigurationError("A file URL for object storage must name a folder: file:///absolute/path.")
    return Path(path)


def _open_bucket(parts: SplitResult, clock: Callable[[], datetime]) -> ObjectStore:
    # the URL is not repeated in the messages: it may hold a secret
    if not parts.netloc:
        raise ConfigurationError("An S3 URL for object storage must name a bucket: s3://bucket/prefix.")
    if "@" in parts.netloc or ":" in parts.netloc:
        raise ConfigurationError(
            "An S3 URL for object storage holds only a bucket and a prefix: s3://bucket/prefix. "
            "Keys, region and endpoint belong in "
            "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL."
        )
    require("s3")
    # boto3 takes 0.2 s to import, and who stores in a folder never needs it
    from comfyrelay.storage.s3 import S3Objects  # noqa: PLC0415

    return S3Objects(parts.netloc, unquote(parts.path), clock=clock)
