"""Every file that the run of a job made, where it is on this machine.

The queue keeps one output of a job. The desk knows of all: copies in its output folder, or, of a script, what that
saved in folders of its own. The list was written by the desk itself; a request only says which of them is meant.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comfyrelay.domain.settlement import Attempt
from comfyrelay.storage.headers import guess_content_type

# Under this name an attempt keeps where its files were copied to.
COPIES = "files"
SAVED = "outputs"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFile:
    """`size` is `None` when the file is no longer there. `is_output` is the one that the queue keeps, too."""

    path: Path
    size: int | None
    is_output: bool

    @property
    def mime_type(self) -> str:
        return guess_content_type(self.path.name) or "application/octet-stream"


def files_of(attempts: Iterable[Attempt], output: Mapping[str, Any] | None) -> list[RunFile]:
    """The files of the newest attempt that made any; `output` is what was told of the job's output, if it has one."""
    for attempt in reversed(list(attempts)):
        about = attempt.about or {}
        if found := about.get(SAVED) or about.get(COPIES):
            paths = [Path(text) for text in found]
            # copies begin with it
            named = (path for path in paths if SAVED in about and output and path.name == output.get("filename"))
            kept = next(named, paths[0]) if output is not None else None
            return [RunFile(path=path, size=_size(path), is_output=path == kept) for path in paths]
    return []


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size if path.is_file() else None
    except (OSError, ValueError):
        return None
