"""Every file that the run of a job made, where it is on this machine.

The queue keeps one output of a job. The desk knows of all: copies in its output folder, or, of a script, what that
saved in folders of its own. The list was written by the desk itself, for no worker names a file here; a request only
says which of them is meant; and what does not lie in the desk's own folders when it is read is not there.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comfyrelay.domain.queue.settlement import Attempt
from comfyrelay.storage.headers import guess_content_type

# Under this name an attempt keeps where its files were copied to.
COPIES = "files"
SAVED = "outputs"
# What is kept of a run and names files: none of it counts when it comes over the wire.
NAMES_FILES = (COPIES, SAVED)


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalRunFile:
    """`place` is where it is once every link is followed, `size` how large it is; both are `None` when it is no longer
    there. `is_output` is the one that the queue keeps, too."""

    path: Path
    place: Path | None
    size: int | None
    is_output: bool

    @property
    def mime_type(self) -> str:
        return guess_content_type(self.path.name) or "application/octet-stream"


def about_run(reported: Mapping[str, Any] | None, own: Mapping[str, Any]) -> dict[str, Any] | None:
    """What is kept of a run: what its worker reports of it, and which files there are as the desk itself knows it."""
    kept = {name: value for name, value in (reported or {}).items() if name not in NAMES_FILES}
    return {**kept, **{name: own[name] for name in NAMES_FILES if name in own}} or None


def files_of(
    attempts: Iterable[Attempt], output: Mapping[str, Any] | None, *, folders: Sequence[Path]
) -> list[LocalRunFile]:
    """The files of the newest attempt that made any, as far as they are in these folders; `output` is what was told of
    the job's output, if it has one."""
    for attempt in reversed(list(attempts)):
        about = attempt.about or {}
        if found := about.get(SAVED) or about.get(COPIES):
            # copies are named from the output folder, which is the first
            paths = [folders[0] / text for text in found]
            # copies begin with it
            named = (path for path in paths if SAVED in about and output and path.name == output.get("filename"))
            kept = next(named, paths[0]) if output is not None else None
            return [_run_file(path, folders, is_output=path == kept) for path in paths]
    return []


def _run_file(path: Path, folders: Sequence[Path], *, is_output: bool) -> LocalRunFile:
    place, size = None, None
    # a link in a circle is a RuntimeError
    with suppress(OSError, RuntimeError, ValueError):
        found = path.resolve(strict=True)
        if found.is_file() and any(found.is_relative_to(each.resolve()) for each in folders):
            place, size = found, found.stat().st_size
    return LocalRunFile(path=path, place=place, size=size, is_output=is_output)
