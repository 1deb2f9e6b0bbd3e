"""Record the files in the output folder that a killed desk may leave behind.

The database and the output folder cannot change together. So a new copy is recorded before it is created and until the
database names it, and a copy that is deleted with its job is recorded until it is gone.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import BaseModel, ValidationError

from comfyrelay.system import atomic, files

# A folder in the output folder with this prefix contains downloads. The rest of its name is the key of their entry.
TEMPORARY = ".copying-"


class JournalEntry(BaseModel):
    """Copies below the output folder that belong to a job, if the database names them as its copies.

    Without `job_id`, they belong to the user, and only their temporary files are leftovers. `sources` are the objects
    of new copies, one for each name: files with other content are not copies of the desk. `root` is the output folder,
    as recorded with an attempt.
    """

    job_id: str | None = None
    names: list[str]
    sources: list[str] = []
    root: str | None = None


class CopyJournal:
    """A folder with one file per entry, for one process at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, key: str, entry: JournalEntry) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A deletion may have a thousand entries. It follows in the same transaction.
        is_durable = bool(entry.sources)
        atomic.write(self._path(key), entry.model_dump_json().encode(), mode=0o600, is_durable=is_durable)

    def remove(self, keys: Sequence[str]) -> None:
        for key in keys:
            files.remove(self._path(key), missing_ok=True)

    def entries(self) -> Iterator[tuple[str, JournalEntry]]:
        """Yield all entries. Incomplete files of a killed process are removed."""
        if not self._folder.is_dir():
            return
        atomic.remove_parts(self._folder)
        for path in sorted(self._folder.glob("*.json")):
            try:
                entry = JournalEntry.model_validate_json(path.read_bytes())
            except ValidationError:
                files.remove(path)
            else:
                yield path.stem, entry

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"
