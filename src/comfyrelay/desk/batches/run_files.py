"""Find the local files of a job's run.

They are copies of its outputs in the output folder, or files that a script saved. The desk itself records their paths,
because no worker may name a file on this machine. A request picks a file by number, and files outside the desk's
folders are ignored.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comfyrelay.domain.outputs import COPIES, COPIES_ROOT, copies_in
from comfyrelay.domain.queue.settlement import Attempt
from comfyrelay.media_types import OCTET_STREAM
from comfyrelay.storage.headers import guess_content_type

# The detail of an attempt with the files that its script saved.
SAVED = "outputs"
# The detail of an attempt with the address of its ComfyUI.
COMFYUI = "comfyui"
# These details name files or are shown as links, so they are never accepted from a remote worker.
FILE_DETAILS = (COPIES, COPIES_ROOT, SAVED, COMFYUI)


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalRunFile:
    """A file of a run. `place` is the resolved path. `place` and `size` are `None` if the file is missing.

    `output_number` is set if the file is an output.
    """

    path: Path
    place: Path | None
    size: int | None
    output_number: int | None

    @property
    def mime_type(self) -> str:
        return guess_content_type(self.path.name) or OCTET_STREAM


def about_run(reported: Mapping[str, Any] | None, own: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the details of a run to store: the worker's report, and the files that the desk knows."""
    report = {name: value for name, value in (reported or {}).items() if name not in FILE_DETAILS}
    return {**report, **{name: own[name] for name in FILE_DETAILS if name in own}} or None


def files_of(
    attempts: Iterable[Attempt],
    outputs: Mapping[int, Mapping[str, Any] | None],
    *,
    folders: Sequence[Path],
    root_of: Callable[[Attempt], Path],
) -> list[LocalRunFile]:
    """Return the files of the newest attempt with files, within these folders or the output folder of its copies.

    `outputs` describe the job's outputs by number. A file of a script is not an output if it was left out or if its
    output was deleted.
    """
    for attempt in reversed(list(attempts)):
        if saved := (attempt.about or {}).get(SAVED):
            named = {(output or {}).get("filename"): number for number, output in outputs.items()}
            paths = [folders[0] / text for text in saved]
            return [_run_file(path, folders, named.get(path.name)) for path in paths]
        if copies := copies_in(attempt.about):
            root = root_of(attempt)
            return [
                _run_file(root / name, [root], number if number in outputs else None) for number, name in copies.items()
            ]
    return []


def _run_file(path: Path, folders: Sequence[Path], output_number: int | None) -> LocalRunFile:
    place, size = None, None
    # A link cycle is a RuntimeError.
    with suppress(OSError, RuntimeError, ValueError):
        found = path.resolve(strict=True)
        if found.is_file() and any(found.is_relative_to(folder.resolve()) for folder in folders):
            place, size = found, found.stat().st_size
    return LocalRunFile(path=path, place=place, size=size, output_number=output_number)
