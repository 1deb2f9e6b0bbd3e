"""Fetch a job's files before it runs: effect assets through the cache, user files only for this job."""

import asyncio
import hashlib
import re
import shutil
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from comfyrelay.comfyui.client.uploads import Attachment
from comfyrelay.errors import Fault, TransferFailed
from comfyrelay.protocol.worker import AssetDownload
from comfyrelay.worker.files.assets import AssetCache
from comfyrelay.worker.files.transfers import Transfers
from comfyrelay.worker.lease import Lease

MAX_DOWNLOADS = 4
_DEFAULT_SUFFIXES = {"image": ".png", "video": ".mp4", "audio": ".wav"}
_SUFFIX = re.compile(r"\.[a-z0-9]{1,10}")
_HASH = re.compile(r"[0-9a-f]{64}")


class Inputs:
    """`folder` has one subfolder per lease with its `inputs`. `asset_folder` is the folder name on the servers."""

    def __init__(self, transfers: Transfers, cache: AssetCache, *, folder: Path, asset_folder: str) -> None:
        self._transfers = transfers
        self._cache = cache
        self._folder = folder
        self._asset_folder = asset_folder
        self._pinned: defaultdict[str, list[Path]] = defaultdict(list)

    async def fetch(self, lease: Lease, *, refresh: Callable[[], Awaitable[None]]) -> list[Attachment]:
        """Fetch all files. If one cannot be fetched, delete the others."""
        limit = asyncio.Semaphore(MAX_DOWNLOADS)

        async def fetch_one(number: int, asset: AssetDownload) -> Attachment:
            async with limit:
                return await self._fetch_one(lease, number, asset, refresh)

        tasks = [asyncio.create_task(fetch_one(number, asset)) for number, asset in enumerate(lease.payload.assets)]
        try:
            return await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.clean(lease)
            raise

    def clean(self, lease: Lease) -> None:
        """Delete the user's files and release the assets."""
        for path in self._pinned.pop(lease.name, ()):
            self._cache.release(path)
        shutil.rmtree(self._folder_of(lease), ignore_errors=True)

    async def _fetch_one(
        self, lease: Lease, number: int, asset: AssetDownload, refresh: Callable[[], Awaitable[None]]
    ) -> Attachment:
        digest, suffix = asset.content_hash, _suffix(lease, asset)

        async def download(to: Path) -> None:
            await self._transfers.download(lambda: lease.urls.assets[asset.key], to, refresh=refresh, sha256=digest)

        if digest is None:
            # Only the suffix is taken from the user's file name.
            path = self._folder_of(lease) / f"{number}{suffix}"
            await download(path)
            return Attachment(placeholder=asset.placeholder, source=path, name=path.name, folder=job_folder(lease))
        if not _HASH.fullmatch(digest):
            raise TransferFailed(f"The hash of the asset '{asset.key}' is not a SHA-256.", fault=Fault.JOB)
        path = await self._cache.get(digest, suffix, download)
        self._pinned[lease.name].append(path)
        return Attachment(
            placeholder=asset.placeholder,
            source=path,
            name=path.name,
            content_hash=digest,
            folder=self._asset_folder,
            shared=True,
        )

    def _folder_of(self, lease: Lease) -> Path:
        return self._folder / lease.name / "inputs"


def job_folder(lease: Lease) -> str:
    """Return the folder name for the files of this job on a server."""
    return f"job-{lease.name}"


def asset_folder(worker: Path) -> str:
    """Return the folder name for this worker's effect assets on a server. The name depends on the worker's own folder,
    because another worker on the same ComfyUI caches other assets."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", worker.name)[:40]
    return f"assets-{name}-{hashlib.sha256(str(worker.absolute()).encode()).hexdigest()[:8]}"


def _suffix(lease: Lease, asset: AssetDownload) -> str:
    own_name = (lease.payload.input_name or "") if asset.is_primary_input else ""
    for name in (own_name, unquote(urlsplit(lease.urls.assets[asset.key]).path)):
        suffix = PurePosixPath(name).suffix.lower()
        if _SUFFIX.fullmatch(suffix):
            return suffix
    return _DEFAULT_SUFFIXES.get(asset.type, ".bin")
