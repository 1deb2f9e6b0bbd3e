"""The list of what is in a backup. It is written last: a folder without it is no backup."""

from datetime import datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError

from comfyrelay.errors import InvalidInput
from comfyrelay.system import atomic

NAME = "manifest.json"
# Of the folders that `backup` makes; they sort by time.
PREFIX = "comfyrelay-"


class ManifestEntry(BaseModel):
    """A file, or a symbolic link, which has no content of its own."""

    path: str
    size: int = 0
    sha256: str = ""
    mode: int = 0o600
    # relative to the folder that it is in
    link: str | None = None


class Manifest(BaseModel):
    format: Literal[1] = 1
    # of ComfyRelay
    version: str
    made_at: datetime
    # by the name of the database, the revision of its schema
    revisions: dict[str, str | None]
    entries: list[ManifestEntry]
    # links out of the data folder: to where they lead is none of a backup's business
    left_out: list[str] = []

    @property
    def size(self) -> int:
        return sum(each.size for each in self.entries)

    def write(self, folder: Path) -> None:
        atomic.write(folder / NAME, self.model_dump_json(indent=1).encode(), mode=0o600)


def find(folder: Path) -> tuple[Path, Manifest]:
    """The backup that a folder is, or the newest whole one of those in it. `InvalidInput` where there is none."""
    if (folder / NAME).is_file():
        return folder, _read(folder)
    found = sorted(each for each in folder.glob(f"{PREFIX}*") if each.is_dir())
    whole = [each for each in found if (each / NAME).is_file()]
    if whole:
        return whole[-1], _read(whole[-1])
    if folder.name.startswith(PREFIX) or found:
        raise InvalidInput(f"The backup in {found[-1] if found else folder} was not finished: it has no {NAME}.")
    raise InvalidInput(f"There is no backup in {folder}. Name a folder that `comfyrelay backup` has written to.")


def _read(folder: Path) -> Manifest:
    try:
        return Manifest.model_validate_json((folder / NAME).read_bytes())
    except (OSError, ValidationError):
        raise InvalidInput(
            f"{folder / NAME} cannot be read: the backup is damaged, or of a version that this one does not know."
        ) from None
