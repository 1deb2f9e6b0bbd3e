"""Local files of a job's run.

The queue keeps one output per job. The desk knows all of them: copies in its output folder, or files that a script
saved. The desk itself records the list, because no worker may name a file here; a request only picks one by number, and
files outside the desk's folders are ignored.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comfyrelay.domain.queue.settlement import Attempt
from comfyrelay.storage.headers import guess_content_type

# Attempt detail with the names of its copies.
COPIES = "files"
SAVED = "outputs"
# Attempt details that name files: never accepted over the wire.
NAMES_FILES = (COPIES, SAVED)


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalRunFile:
    """`place` is the resolved path and `size` its size; both are `None` if it is missing.

    `is_output`: the file is the job's output.
    """

    path: Path
    place: Path | None
    size: int | None
    is_output: bool

    @property
    def mime_type(self) -> str:
        return guess_content_type(self.path.name) or "application/octet-stream"


def about_run(reported: Mapping[str, Any] | None, own: Mapping[str, Any]) -> dict[str, Any] | None:
    """Details to keep of a run: the worker's report, plus the files that the desk knows."""
    kept = {name: value for name, value in (reported or {}).items() if name not in NAMES_FILES}
    return {**kept, **{name: own[name] for name in NAMES_FILES if name in own}} or None


def files_of(
    attempts: Iterable[Attempt], output: Mapping[str, Any] | None, *, folders: Sequence[Path]
) -> list[LocalRunFile]:
    """Files of the newest attempt that has any, within these folders; `output` describes the job's output, if any."""
    for attempt in reversed(list(attempts)):
        about = attempt.about or {}
        if found := about.get(SAVED) or about.get(COPIES):
            # copies are relative to the output folder, which comes first
            paths = [folders[0] / text for text in found]
            # the output comes first
            named = (path for path in paths if SAVED in about and output and path.name == output.get("filename"))
            kept = next(named, paths[0]) if output is not None else None
            return [_run_file(path, folders, is_output=path == kept) for path in paths]
    return []


def _run_file(path: Path, folders: Sequence[Path], *, is_output: bool) -> LocalRunFile:
    place, size = None, None
    # a link cycle is a RuntimeError
    with suppress(OSError, RuntimeError, ValueError):
        found = path.resolve(strict=True)
        if found.is_file() and any(found.is_relative_to(folder.resolve()) for folder in folders):
            place, size = found, found.stat().st_size
    return LocalRunFile(path=path, place=place, size=size, is_output=is_output)
