"""Object storage behind one small port, and its local implementation."""

import asyncio
import contextlib
import os
import tempfile
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from comfyrelay.errors import ConfigurationError, InvalidInput, NotFound

__all__ = ["LocalObjects", "ObjectStore", "open_objects"]


class ObjectStore(Protocol):
    """Bytes under relative paths (`tenants/7/inputs/a.png`)."""

    async def put(self, path: str, data: bytes) -> None:
        """Store the data; readers see the old object or the new one, never a part."""

    async def get(self, path: str) -> bytes:
        """Return the data, or raise `NotFound`."""
        ...

    async def exists(self, path: str) -> bool:
        """Whether there is an object at this path."""
        ...

    async def delete(self, path: str) -> None:
        """Remove the object; nothing happens when there is none."""


def open_objects(url: str) -> ObjectStore:
    """Open the object storage at this URL."""
    parts = urlsplit(url)
    if parts.scheme != "file":
        raise ConfigurationError(
            f"Object storage of scheme {parts.scheme!r} is not supported. Use file:///absolute/path."
        )
    folder = Path(unquote(parts.path))
    if parts.netloc not in ("", "localhost") or not parts.path.strip("/"):
        raise ConfigurationError("A file URL for object storage must name a folder: file:///absolute/path.")
    return LocalObjects(folder)


class LocalObjects:
    """Objects as files in a folder, which is made when first needed."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    async def put(self, path: str, data: bytes) -> None:
        """Store the data; readers see the old object or the new one, never a part."""
        await asyncio.to_thread(_write, self._root, path, data)

    async def get(self, path: str) -> bytes:
        """Return the data, or raise `NotFound`."""
        return await asyncio.to_thread(_read, self._root, path)

    async def exists(self, path: str) -> bool:
        """Whether there is an object at this path."""
        return await asyncio.to_thread(_is_there, self._root, path)

    async def delete(self, path: str) -> None:
        """Remove the object; nothing happens when there is none."""
        await asyncio.to_thread(_remove, self._root, path)


def _inside(root: Path, path: str) -> Path:
    """Return the file that a path names, refusing every path that could lead out of the root."""
    if not all(map(_is_plain_name, path.split("/"))):
        raise _refused(path)
    file = root / path
    # a symbolic link below the root may still point outside
    if not file.resolve().is_relative_to(root.resolve()):
        raise _refused(path)
    return file


def _is_plain_name(part: str) -> bool:
    if part in ("", ".", "..") or not part.isprintable() or "\\" in part:
        return False
    # file systems take no longer names; printable text always encodes
    return len(part.encode()) <= 255


def _refused(path: str) -> InvalidInput:
    return InvalidInput("This is not a path in object storage.", errors={"path": f"{path!r} is not allowed."})


def _write(root: Path, path: str, data: bytes) -> None:
    file = _inside(root, path)
    file.parent.mkdir(parents=True, exist_ok=True)
    # in the same folder, because a rename is atomic only inside one file system
    handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=".put-")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            # without it a power cut may leave an empty file under the final name
            os.fsync(stream.fileno())
        Path(temporary).replace(file)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _read(root: Path, path: str) -> bytes:
    try:
        return _inside(root, path).read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise NotFound(f"There is no object at {path!r}.") from None


def _is_there(root: Path, path: str) -> bool:
    return _inside(root, path).is_file()


def _remove(root: Path, path: str) -> None:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
        _inside(root, path).unlink()
