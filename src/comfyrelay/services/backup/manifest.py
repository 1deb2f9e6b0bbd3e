"""The manifest of a backup. It is written last: a folder without it is an incomplete backup."""

from datetime import datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError

from comfyrelay.errors import InvalidInput
from comfyrelay.system import atomic

NAME = "manifest.json"
# Prefix of backup folders, which sort by time.
PREFIX = "comfyrelay-"


class ManifestEntry(BaseModel):
    """A file or a symbolic link."""

    path: str
    size: int = 0
    sha256: str = ""
    mode: int = 0o600
    # Target of a symbolic link, relative to its folder.
    link: str | None = None


class Manifest(BaseModel):
    format: Literal[1] = 1
    # Version of ComfyRelay.
    version: str
    made_at: datetime
    # Schema revision by database.
    revisions: dict[str, str | None]
    entries: list[ManifestEntry]
    # Links to targets outside the data folder.
    left_out: list[str] = []

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.entries)

    def write(self, folder: Path) -> None:
        atomic.write(folder / NAME, self.model_dump_json(indent=1).encode(), mode=0o600)


def find_backup(folder: Path) -> tuple[Path, Manifest]:
    """Find the backup in a folder, or the newest complete one below it. Raises `InvalidInput` if there is none."""
    if (folder / NAME).is_file():
        return folder, _read(folder)
    found = sorted(path for path in folder.glob(f"{PREFIX}*") if path.is_dir())
    complete = [backup for backup in found if (backup / NAME).is_file()]
    if complete:
        return complete[-1], _read(complete[-1])
    if folder.name.startswith(PREFIX) or found:
        raise InvalidInput(f"The backup in {found[-1] if found else folder} was not finished: it has no {NAME}.")
    raise InvalidInput(f"There is no backup in {folder}. Choose a folder that `comfyrelay backup` has written to.")


def _read(folder: Path) -> Manifest:
    try:
        return Manifest.model_validate_json((folder / NAME).read_bytes())
    except (OSError, ValidationError):
        raise InvalidInput(
            f"{folder / NAME} cannot be read: the backup is damaged or comes from an unknown version."
        ) from None
