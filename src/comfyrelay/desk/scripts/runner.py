"""Jobs that run the user's own script: as a subprocess, watched, and ended with everything that it has started."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from comfyrelay.desk.scripts.command import ScriptSettings, check_settings, command_of, shown
from comfyrelay.desk.scripts.errors import error_sentence
from comfyrelay.desk.scripts.log import BoundedLog, Line, Lines
from comfyrelay.desk.scripts.output_parser import Reading, ScriptProgress, saved_files
from comfyrelay.errors import ConfigurationError
from comfyrelay.protocol.desk import ScriptJob
from comfyrelay.settings import ENV_PREFIX
from comfyrelay.system.commands.process_group import Child

__all__ = ["ScriptJob", "ScriptProgress", "ScriptResult", "ScriptRunner", "ScriptSettings"]

OnLine = Callable[[str], Awaitable[None]]
OnProgress = Callable[[ScriptProgress], Awaitable[None]]
OnStopped = Callable[["ScriptResult"], None]

# So that lines come when they are printed, and so that emoji can be printed where the locale has none.
_PYTHON = {"PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptResult:
    """How a script ended. `exit_code` is 128 + the signal for one that was killed; `error` is `None` after a 0, and of
    one that was stopped.

    `outputs` are the files in its folders that it named and that were written while it ran; `seed` is the last one
    that it named.
    """

    exit_code: int | None
    argv: tuple[str, ...]
    outputs: list[Path]
    error: str | None
    seed: int | None


class ScriptRunner:
    """Runs scripts as the configuration says. `environment` is for what only the desk knows, as ComfyUI's address;
    `umask` is the script's, if not ours."""

    def __init__(
        self, settings: ScriptSettings, *, environment: Mapping[str, str] | None = None, umask: int | None = None
    ) -> None:
        self._settings = settings
        self._umask = umask
        self._environment = dict(environment or {})

    def command(self, job: ScriptJob) -> list[str]:
        """What would be run, to be shown; `InvalidInput` when it would not be."""
        return command_of(self._settings, job)

    async def run(
        self,
        job: ScriptJob,
        *,
        on_line: OnLine,
        on_progress: OnProgress,
        on_stopped: OnStopped = lambda _result: None,
        log_path: Path,
    ) -> ScriptResult:
        """Run a script to its end. Canceling the call ends it and all its processes first, gently, then firmly.

        While `on_line` and `on_progress` take their time, the script waits. `on_stopped` is told what came of a script
        whose call was canceled. `log_path` has everything that it printed, up to the configured size, after the
        command itself.
        """
        await asyncio.to_thread(check_settings, self._settings)
        argv = await asyncio.to_thread(command_of, self._settings, job)
        # prompts may be long, and every part of them is remembered
        reading = await asyncio.to_thread(Reading, [job.positive, job.negative or ""])
        begun = time.time()
        with BoundedLog(log_path, max_bytes=self._settings.max_log_bytes) as log:
            log.write(f"$ {shown(argv)}")
            log.flush()
            output = _Output(log, reading, on_line, on_progress)
            try:
                await self._watch(argv, output)
            except asyncio.CancelledError:
                on_stopped(self._result(argv, output, begun, is_stopped=True))
                raise
        return await asyncio.to_thread(self._result, argv, output, begun)

    def _result(self, argv: list[str], output: "_Output", begun: float, *, is_stopped: bool = False) -> ScriptResult:
        reading, exit_code = output.reading, output.exit_code
        return ScriptResult(
            exit_code=exit_code,
            argv=tuple(argv),
            outputs=saved_files(reading.candidates, folders=self._settings.own_folders, since=begun),
            error=error_sentence(reading.tail, exit_code) if exit_code and not is_stopped else None,
            seed=reading.seed,
        )

    async def _watch(self, argv: list[str], output: "_Output") -> None:
        folder = self._settings.working_folder
        try:
            child = await Child.start(
                argv,
                folder=folder,
                environment=self._variables(),
                grace_seconds=self._settings.grace_seconds,
                umask=self._umask,
            )
        except OSError as error:
            raise ConfigurationError(f"The script cannot be started in {folder}: {error.strerror}.") from None
        try:
            while piece := await child.read():
                await output.take(piece)
            await output.take(b"", is_last=True)
            await child.ended()
        except BaseException:
            await child.end(output.log_only)
            raise
        finally:
            output.exit_code = child.exit_code

    def _variables(self) -> dict[str, str]:
        # our own may hold passwords of databases and secrets of the fleet
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}
        return {**inherited, **_PYTHON, **self._environment, **self._settings.environment}


class _Output:
    """Takes a script's output apart, into the log and to its listeners."""

    def __init__(self, log: BoundedLog, reading: Reading, on_line: OnLine, on_progress: OnProgress) -> None:
        self.reading = reading
        self.exit_code: int | None = None
        self._lines = Lines()
        self._log = log
        self._on_line = on_line
        self._on_progress = on_progress
        self._last_progress: ScriptProgress | None = None

    async def take(self, piece: bytes, *, is_last: bool = False) -> None:
        newest = None
        for line, progress in self._kept(self._lines.feed(piece, is_last=is_last)):
            newest = progress or newest
            if line is not None:
                await self._on_line(line.text)
        self._log.flush()
        # a progress bar that stands still has no end of line yet
        newest = self.reading.progress(self._lines.unfinished) or newest
        if newest is not None and newest != self._last_progress:
            self._last_progress = newest
            await self._on_progress(newest)

    def log_only(self, piece: bytes) -> None:
        """What comes after nobody listens any more."""
        for _ in self._kept(self._lines.feed(piece)):
            pass

    def _kept(self, lines: Iterable[Line]) -> Iterable[tuple[Line | None, ScriptProgress | None]]:
        for line in lines:
            end = "" if line.goes_on else "\n"
            progress = self.reading.add(line.text, end=end)
            # of a progress bar, only how it ends
            if line.is_overwritten and progress is not None:
                yield None, progress
            else:
                self._log.write(line.text, end=end)
                yield line, progress
