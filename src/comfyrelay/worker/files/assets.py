"""A cache of effect assets by content hash, with least-recently-used eviction."""

import asyncio
import os
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from weakref import WeakValueDictionary

import structlog

from comfyrelay.comfyui.client.uploads import content_hash as hash_of
from comfyrelay.errors import TransferFailed
from comfyrelay.system import files
from comfyrelay.system.atomic import part_of

log = structlog.get_logger(__name__)


class AssetCache:
    """A folder for one process. Modification times record the last use, so that the order survives restarts."""

    def __init__(self, folder: Path, *, max_bytes: int, on_removed: Callable[[str], None] = lambda _name: None) -> None:
        """`on_removed` is called with the name of each evicted file."""
        self.hits = 0
        self.misses = 0
        self.bytes = 0
        self._folder = folder
        self._max_bytes = max_bytes
        self._on_removed = on_removed
        # Sizes by name, most recently used last.
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._pins: Counter[str] = Counter()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._load()

    @property
    def names(self) -> Collection[str]:
        """The names of the cached files: content hashes with a suffix."""
        return self._sizes.keys()

    async def get(self, content_hash: str, suffix: str, fetch: Callable[[Path], Awaitable[object]]) -> Path:
        """Return the file with this content, calling `fetch` if it is missing. The file is kept until released."""
        name = f"{content_hash}{suffix}"
        path = self._folder / name
        # A second job with the same file waits for the download of the first job.
        async with self._locks.setdefault(content_hash, asyncio.Lock()):
            if name in self._sizes and path.is_file():
                self.hits += 1
            else:
                self.misses += 1
                await self._fetch(content_hash, path, fetch)
            self._pins[name] += 1
            self._sizes.move_to_end(name)
            os.utime(path)
        self._make_room()
        return path

    def release(self, path: Path) -> None:
        """Release a file after its job."""
        self._pins[path.name] -= 1
        if self._pins[path.name] <= 0:
            del self._pins[path.name]
        self._make_room()

    async def _fetch(self, content_hash: str, path: Path, fetch: Callable[[Path], Awaitable[object]]) -> None:
        with part_of(path) as part:
            await fetch(part)
            if await asyncio.to_thread(hash_of, part) != content_hash:
                raise TransferFailed("An input of the job does not match its checksum.")
        self._add(path)

    def _load(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        cached = []
        for path in self._folder.iterdir():
            if path.name.startswith("."):
                # Left by an interrupted download.
                files.remove(path, missing_ok=True)
            elif path.is_file():
                cached.append((path.stat().st_mtime_ns, path))
        for _, path in sorted(cached):
            self._add(path)
        self._make_room()

    def _add(self, path: Path) -> None:
        size = path.stat().st_size
        self.bytes += size - self._sizes.pop(path.name, 0)
        self._sizes[path.name] = size

    def _make_room(self) -> None:
        for name in list(self._sizes):
            if self.bytes <= self._max_bytes:
                return
            if name not in self._pins:
                try:
                    files.remove(self._folder / name, missing_ok=True)
                except OSError as error:
                    log.warning("assets.not_removed", why=error.strerror)
                self.bytes -= self._sizes.pop(name)
                self._on_removed(name)
