"""Freeze the template, inputs and arguments of a script job, so that a later run does not depend on changes.

A job uses the original files while they are unchanged, and otherwise the frozen copies. Copies of inputs are in a
hidden folder next to the originals, because a script resolves `--input-subdir` itself.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from comfyrelay.desk.scripts.command import ScriptSettings
from comfyrelay.errors import InvalidInput, ScriptFailed
from comfyrelay.protocol.desk import ScriptJob
from comfyrelay.system import atomic, files

# The folder of frozen copies in the input folder.
HIDDEN = ".comfyrelay"
# Copies newer than this are kept, because their job may not be in the queue yet.
MIN_AGE_SECONDS = 3600.0


class FrozenInputs:
    """Frozen templates, arguments and inputs. `folder` contains the templates and arguments.

    Equal content is stored once.
    """

    def __init__(self, folder: Path, settings: ScriptSettings) -> None:
        self._folder = folder
        self._settings = settings
        self._inputs = settings.input_folder / HIDDEN

    def take(self, job: ScriptJob) -> str:
        """Freeze the files and arguments of this job. Returns the name to restore them with."""
        try:
            content = (self._settings.template_folder / job.template).read_bytes()
            template, inputs, arguments = _digest(content), self._digest_of(job), _digest(self._arguments)
            self._write(self._folder / template / job.template, content)
            self._write(self._folder / f"{arguments}.arguments", self._arguments)
            self._copy_inputs(job, self._inputs / inputs)
        except OSError as error:
            raise InvalidInput(
                errors={"input_subdir": f"The inputs cannot be copied: {error.strerror} ({error.filename})."}
            ) from None
        return f"{template}-{inputs}-{arguments}"

    def restore(self, name: str, job: ScriptJob) -> tuple[ScriptSettings, ScriptJob]:
        """Return the settings and the job as they were when it was added."""
        template, inputs, arguments = name.split("-")
        settings, folder = self._settings, self._inputs / inputs / _name(job)
        try:
            if _digest(self._arguments) != arguments:
                frozen = json.loads((self._folder / f"{arguments}.arguments").read_bytes())
                settings = settings.model_copy(update={"arguments": frozen})
            if self._template_digest(job) != template:
                settings = settings.model_copy(update={"template_folder": self._folder / template})
        except OSError as error:
            raise ScriptFailed(f"Inputs of this job are missing: {error.filename}. Add it again.") from None
        if self._digest_of(job) == inputs:
            return settings, job
        if not folder.is_dir():
            raise ScriptFailed(f"The inputs have changed, and this job's copies are missing: {folder}. Add it again.")
        return settings, job.model_copy(update={"input_subdir": folder.relative_to(settings.input_folder).as_posix()})

    def sweep(self, used: Collection[str]) -> None:
        """Delete all files that no job can use."""
        needed = {part for name in used for part in name.split("-")}
        newest = time.time() - MIN_AGE_SECONDS
        for root in (self._folder, self._inputs):
            for path in root.iterdir() if root.is_dir() else ():
                # A copy gets its name after the folder was read.
                with suppress(FileNotFoundError):
                    if path.name.partition(".")[0] not in needed and path.stat().st_mtime < newest:
                        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else files.remove(path)

    @property
    def _arguments(self) -> bytes:
        return json.dumps(self._settings.arguments).encode()

    def _template_digest(self, job: ScriptJob) -> str | None:
        try:
            return _digest((self._settings.template_folder / job.template).read_bytes())
        except OSError:
            return None

    def _digest_of(self, job: ScriptJob) -> str:
        """Return a digest of names, sizes and times, because reading all files would take too long."""
        root = self._settings.input_folder / job.input_subdir
        listed = [
            [str(path.relative_to(root)), path.stat().st_size, path.stat().st_mtime_ns] for path in _files_in(root)
        ]
        return _digest(json.dumps([_name(job), sorted(listed)]).encode())

    def _copy_inputs(self, job: ScriptJob, target: Path) -> None:
        if target.is_dir():
            # Mark the folder as used.
            os.utime(target)
            return
        root = self._settings.input_folder / job.input_subdir
        # The folder becomes visible only when it is complete.
        part = target.with_name(f"{atomic.PART_PREFIX}{uuid4().hex}")
        try:
            (part / _name(job)).mkdir(parents=True)
            for path in _files_in(root):
                copy = part / _name(job) / path.relative_to(root)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, copy)
            _move(part, target)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise

    def _write(self, path: Path, content: bytes) -> None:
        if path.is_file():
            os.utime(path.parent if path.parent != self._folder else path)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write(path, content)


def _move(part: Path, target: Path) -> None:
    try:
        files.move(part, target)
    except OSError:
        # Another job with the same inputs may have made the copy at the same time.
        if not target.is_dir():
            raise
        shutil.rmtree(part, ignore_errors=True)
        os.utime(target)


def _files_in(root: Path) -> Iterator[Path]:
    """Yield all files except hidden files and files in linked folders, which may form cycles."""
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(folder, name) for name in names if not name.startswith("."))


def _name(job: ScriptJob) -> str:
    """Return the name of the input folder. Scripts may name outputs after it."""
    return Path(job.input_subdir).name or "inputs"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:24]
