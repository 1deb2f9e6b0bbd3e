"""Check the operations of object storage that the server needs. For operators who configure storage."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from comfyrelay.domain.ids import new_id
from comfyrelay.errors import ComfyRelayError, ConfigurationError
from comfyrelay.protocol.admin.operations import StorageCheckPart
from comfyrelay.storage.objects import ObjectStore, SignedUpload

FOLDER = "checks"
CONTENT = b"ComfyRelay was here."
MEDIA_TYPE = "text/plain"
URL_SECONDS = 300.0


class Part(StrEnum):
    """The checks, in order."""

    WRITE = "write"
    READ = "read"
    REMOVE = "remove"
    # Whether pages of this server may upload files.
    BROWSERS = "browsers"


@dataclass(frozen=True, kw_only=True, slots=True)
class StorageCheckResult:
    """The results of the checks. A browser can check its own access with `upload` and `download_url`."""

    checks: Sequence[StorageCheckPart]
    upload: SignedUpload | None
    download_url: str | None


class StorageChecks:
    def __init__(self, objects: ObjectStore, *, origins: Sequence[str]) -> None:
        """`origins` are the origins of pages that upload files."""
        self._objects = objects
        self._origins = origins

    async def run(self) -> StorageCheckResult:
        checks = [result async for result in self._check_parts()]
        if any(result.problem for result in checks if result.part != Part.BROWSERS):
            return StorageCheckResult(checks=checks, upload=None, download_url=None)
        path = f"{FOLDER}/{new_id()}.txt"
        return StorageCheckResult(
            checks=checks,
            upload=await self._objects.sign_upload(
                path, content_type=MEDIA_TYPE, size=len(CONTENT), ttl_seconds=URL_SECONDS
            ),
            download_url=await self._objects.sign_download(path, ttl_seconds=URL_SECONDS),
        )

    async def _check_parts(self) -> AsyncIterator[StorageCheckPart]:
        path = f"{FOLDER}/{new_id()}.txt"
        steps: dict[Part, Callable[[], Awaitable[None]]] = {
            Part.WRITE: lambda: self._objects.put(path, CONTENT),
            Part.READ: lambda: self._read(path),
            Part.REMOVE: self._remove,
            Part.BROWSERS: lambda: self._objects.ensure_cors(self._origins),
        }
        for part, step in steps.items():
            try:
                await step()
            except ComfyRelayError as error:
                yield StorageCheckPart(part=part, problem=error.detail)
                # Later checks depend on this one.
                return
            yield StorageCheckPart(part=part, problem=None)

    async def _read(self, path: str) -> None:
        if await self._objects.get(path) != CONTENT:
            raise ConfigurationError("Storage returned different content from what was written. Is the bucket shared?")

    async def _remove(self) -> None:
        """Remove all test files, including earlier uploads of browsers."""
        await self._objects.remove_many([object_.path async for object_ in self._objects.list(FOLDER)])
