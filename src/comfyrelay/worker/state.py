"""Worker state on disk: its token and the leases it holds, so that a killed worker can recover."""

import json
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from comfyrelay.errors import ConfigurationError
from comfyrelay.protocol.worker import LeasedJob, Urls
from comfyrelay.system import atomic, files
from comfyrelay.system.folder_lock import FolderLock
from comfyrelay.worker.lease import Lease


class HeldLease(BaseModel):
    """A saved lease with its newest URLs, its runs (server, prompt id) and its output, if any.

    If it `is_settled`, the lease has ended, but its runs may continue.
    """

    job: LeasedJob
    urls: Urls
    began_after_seconds: float | None
    about: dict[str, Any]
    runs: list[tuple[str, str]]
    output: dict[str, Any] | None
    is_settled: bool = False

    @cached_property
    def lease(self) -> Lease:
        return Lease(job=self.job, urls=self.urls, began_after_seconds=self.began_after_seconds, about=dict(self.about))


class _UnfinishedFile(BaseModel):
    """An unanswered upload, which has a folder, or an unfinished run, whose id is the name of the file."""

    server: str
    folder: str | None = None


class StateFolder:
    """A folder used by one process at a time.

    token.json          worker token
    key.json            key that proves who registered this worker id
    held/<lease>.json   a lease, where it runs, and its output, if any
    work/<lease>/       temporary files of a job
    left/<run>.json     a run that may still write files and its server, or an unanswered upload
    assets/             cached effect assets
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.work = folder / "work"
        self.assets = folder / "assets"
        self._held = folder / "held"
        self._unfinished = folder / "left"
        self._token = folder / "token.json"
        self._key = folder / "key.json"
        self._lock = FolderLock(folder)

    def open(self) -> None:
        """Lock the folder. Raises `ConfigurationError` if another process uses it."""
        try:
            for folder in (self.work, self.assets, self._held, self._unfinished):
                folder.mkdir(parents=True, exist_ok=True)
            self.folder.chmod(0o700)
        except OSError as error:
            raise ConfigurationError(
                f"The worker's folder {self.folder} cannot be used: {error.strerror}. Choose another with "
                "COMFYRELAY_WORKER_DATA_DIR."
            ) from None
        self._lock.acquire(advice="Give each worker on this machine a different WORKER_ID.")
        for folder in (self.folder, self._held, self._unfinished):
            atomic.remove_parts(folder)
        for folder in self.work.iterdir():
            if not self._entry(folder.name).exists():
                shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        self._lock.release()

    def saved_token(self) -> str | None:
        return _read(self._token, "token")

    def registration_key(self) -> str:
        """Return a stable key for this folder.

        The key is saved before its first use. Otherwise, a lost response would leave a worker id that cannot be used.
        """
        if (saved := _read(self._key, "key")) is not None:
            return saved
        key = secrets.token_hex(32)
        _write(self._key, json.dumps({"key": key}))
        return key

    def save_token(self, token: str) -> None:
        _write(self._token, json.dumps({"token": token}))

    def delete_token(self) -> None:
        files.remove(self._token, missing_ok=True)

    def folder_of(self, lease: Lease) -> Path:
        """Create and return the folder for temporary files of a job."""
        folder = self.work / lease.name
        folder.mkdir(exist_ok=True)
        return folder

    def note(
        self,
        lease: Lease,
        *,
        runs: Sequence[tuple[str, str]] = (),
        output: Mapping[str, Any] | None = None,
        is_settled: bool = False,
    ) -> None:
        """Save a lease and its progress. A saved output survives a power failure, so that it is not copied twice."""
        # Not in a thread: writing a small file to the page cache is faster, and the order is kept.
        held = HeldLease(
            job=lease.job,
            urls=lease.urls,
            began_after_seconds=lease.began_after_seconds,
            about=lease.about,
            runs=list(runs),
            output=dict(output) if output is not None else None,
            is_settled=is_settled,
        )
        _write(self._entry(lease.name), json.dumps(held.model_dump(mode="json")), is_durable=output is not None)

    def forget(self, lease: Lease) -> None:
        """Delete all files about a lease that has ended."""
        files.remove(self._entry(lease.name), missing_ok=True)
        shutil.rmtree(self.work / lease.name, ignore_errors=True)

    def held_leases(self) -> list[HeldLease]:
        """Return the leases of an earlier process."""
        leases = []
        for path in sorted(self._held.glob("*.json")):
            try:
                leases.append(HeldLease.model_validate_json(path.read_bytes()))
            except (OSError, ValueError):
                files.remove(path, missing_ok=True)
        return leases

    def record_unfinished(self, server: str, prompt_id: str) -> None:
        """Record that a run may still write files. The id is safe in a file name."""
        _write(self._unfinished / f"{prompt_id}.json", json.dumps({"server": server}))

    def forget_unfinished(self, prompt_id: str) -> None:
        files.remove(self._unfinished / f"{prompt_id}.json", missing_ok=True)

    def unfinished_runs(self) -> list[tuple[str, str]]:
        """Return the recorded runs as (server, prompt id)."""
        return [(entry.server, name) for name, entry in self._unfinished_entries() if entry.folder is None]

    def record_upload(self, server: str, folder: str) -> None:
        """Record that a server may still write a file into a job's folder. The server and folder names are safe in file
        names."""
        _write(self._upload(server, folder), json.dumps({"server": server, "folder": folder}))

    def forget_upload(self, server: str, folder: str) -> None:
        files.remove(self._upload(server, folder), missing_ok=True)

    def unanswered_uploads(self) -> list[tuple[str, str]]:
        """Return the recorded uploads as (server, folder)."""
        return [(entry.server, entry.folder) for _, entry in self._unfinished_entries() if entry.folder is not None]

    def _unfinished_entries(self) -> Iterator[tuple[str, _UnfinishedFile]]:
        for path in sorted(self._unfinished.glob("*.json")):
            try:
                yield path.stem, _UnfinishedFile.model_validate_json(path.read_bytes())
            except (OSError, ValueError):
                files.remove(path, missing_ok=True)

    def _upload(self, server: str, folder: str) -> Path:
        return self._unfinished / f"{folder}.{server}.json"

    def _entry(self, name: str) -> Path:
        return self._held / f"{name}.json"


def _read(path: Path, name: str) -> str | None:
    try:
        return str(json.loads(path.read_text("utf-8"))[name])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(path: Path, text: str, *, is_durable: bool = False) -> None:
    """Write a file atomically. Only the owner may read the file, because it contains a token or user text."""
    atomic.write(path, text.encode(), mode=0o600, is_durable=is_durable)
