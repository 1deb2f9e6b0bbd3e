"""Find the local files of a job's run.

The queue stores one output per job. The desk knows all outputs: copies in its output folder, or files that a script
saved. The desk itself records their paths, because no worker may name a file on this machine. A request picks a file by
number, and files outside of the desk's folders are ignored.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comfyrelay.domain.queue.settlement import Attempt
from comfyrelay.media_types import OCTET_STREAM
from comfyrelay.storage.headers import guess_content_type

# Details of an attempt: the names of its copies, and the files that its script saved.
COPIES = "files"
SAVED = "outputs"
# These details name files, so they are never accepted over the wire.
FILE_DETAILS = (COPIES, SAVED)


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalRunFile:
    """A file of a run. `place` is the resolved path; it and `size` are `None` if the file is missing.

    `is_output`: whether the file is the job's output.
    """

    path: Path
    place: Path | None
    size: int | None
    is_output: bool

    @property
    def mime_type(self) -> str:
        return guess_content_type(self.path.name) or OCTET_STREAM


def about_run(reported: Mapping[str, Any] | None, own: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the details of a run to store: the worker's report, and the files that the desk knows."""
    report = {name: value for name, value in (reported or {}).items() if name not in FILE_DETAILS}
    return {**report, **{name: own[name] for name in FILE_DETAILS if name in own}} or None


def files_of(
    attempts: Iterable[Attempt], output: Mapping[str, Any] | None, *, folders: Sequence[Path]
) -> list[LocalRunFile]:
    """Return the files of the newest attempt with files, within these folders. `output` describes the job's output."""
    for attempt in reversed(list(attempts)):
        about = attempt.about or {}
        if found := about.get(SAVED) or about.get(COPIES):
            # Copies are relative to the output folder, which is the first folder.
            paths = [folders[0] / text for text in found]
            # The job's output is the first file, unless a script has named another one.
            named = (path for path in paths if SAVED in about and output and path.name == output.get("filename"))
            output_path = next(named, paths[0]) if output is not None else None
            return [_run_file(path, folders, is_output=path == output_path) for path in paths]
    return []


def _run_file(path: Path, folders: Sequence[Path], *, is_output: bool) -> LocalRunFile:
    place, size = None, None
    # A link cycle is a RuntimeError.
    with suppress(OSError, RuntimeError, ValueError):
        found = path.resolve(strict=True)
        if found.is_file() and any(found.is_relative_to(folder.resolve()) for folder in folders):
            place, size = found, found.stat().st_size
    return LocalRunFile(path=path, place=place, size=size, is_output=is_output)
