"""Run the user's script as a subprocess, and stop it with all its children."""

import asyncio
import os
import shlex
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from comfyrelay.configuration import ENV_PREFIX
from comfyrelay.desk.scripts.command import ScriptSettings, check_settings, command_of
from comfyrelay.desk.scripts.errors import error_sentence
from comfyrelay.desk.scripts.log import BoundedLog, Line, Lines
from comfyrelay.desk.scripts.output_parser import OutputParser, ScriptProgress, saved_files
from comfyrelay.errors import ConfigurationError
from comfyrelay.protocol.desk import ScriptJob
from comfyrelay.system.commands.process_group import Child

OnLine = Callable[[str], Awaitable[None]]
OnProgress = Callable[[ScriptProgress], Awaitable[None]]
OnStopped = Callable[["ScriptResult"], None]

# Unbuffered output in UTF-8, independent of the locale.
_PYTHON = {"PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptResult:
    """The result of a script.

    `exit_code` is 128 + signal for a killed script. `error` is `None` for exit code 0, or if the script was stopped.
    `outputs` are the files that the script named and wrote in its folders. `seed` is the last seed that the script
    named.
    """

    exit_code: int | None
    argv: tuple[str, ...]
    outputs: list[Path]
    error: str | None
    seed: int | None


class ScriptRunner:
    """Runs scripts. `environment` contains variables that only the desk knows, such as ComfyUI's URL. `umask` overrides
    the umask of the process."""

    def __init__(
        self, settings: ScriptSettings, *, environment: Mapping[str, str] | None = None, umask: int | None = None
    ) -> None:
        self._settings = settings
        self._umask = umask
        self._environment = dict(environment or {})

    async def run(
        self,
        job: ScriptJob,
        *,
        on_line: OnLine,
        on_progress: OnProgress,
        on_stopped: OnStopped = lambda _result: None,
        log_path: Path,
    ) -> ScriptResult:
        """Run a script to its end. Cancellation stops all its processes, first with SIGTERM, then with SIGKILL.

        The script waits while `on_line` and `on_progress` run. `on_stopped` gets the result of a cancelled script.
        `log_path` gets the command and its output, up to the configured size.
        """
        await asyncio.to_thread(check_settings, self._settings)
        argv = await asyncio.to_thread(command_of, self._settings, job)
        # In a thread: prompts may be long, and all their parts are indexed.
        parser = await asyncio.to_thread(OutputParser, [job.positive, job.negative or ""])
        started_at = time.time()
        with BoundedLog(log_path, max_bytes=self._settings.max_log_bytes) as log:
            log.write(f"$ {shlex.join(argv)}")
            log.flush()
            output = _Output(log, parser, on_line, on_progress)
            try:
                await self._watch(argv, output)
            except asyncio.CancelledError:
                on_stopped(self._result(argv, output, started_at, is_stopped=True))
                raise
        return await asyncio.to_thread(self._result, argv, output, started_at)

    def _result(
        self, argv: list[str], output: "_Output", started_at: float, *, is_stopped: bool = False
    ) -> ScriptResult:
        parser, exit_code = output.parser, output.exit_code
        return ScriptResult(
            exit_code=exit_code,
            argv=tuple(argv),
            outputs=saved_files(parser.candidates, folders=self._settings.own_folders, since=started_at),
            error=error_sentence(parser.tail, exit_code) if exit_code and not is_stopped else None,
            seed=parser.seed,
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
                await output.process(piece)
            await output.process(b"", is_last=True)
            await child.wait()
        except BaseException:
            await child.terminate(output.log_only)
            raise
        finally:
            output.exit_code = child.exit_code

    def _variables(self) -> dict[str, str]:
        # The environment of the desk may contain database passwords and fleet secrets. ComfyRelay's settings ignore
        # case.
        inherited = {name: value for name, value in os.environ.items() if not name.upper().startswith(ENV_PREFIX)}
        return {**inherited, **_PYTHON, **self._environment, **self._settings.environment}


class _Output:
    """Passes a script's output to the log and its listeners."""

    def __init__(self, log: BoundedLog, parser: OutputParser, on_line: OnLine, on_progress: OnProgress) -> None:
        self.parser = parser
        self.exit_code: int | None = None
        self._lines = Lines()
        self._log = log
        self._on_line = on_line
        self._on_progress = on_progress
        self._last_progress: ScriptProgress | None = None

    async def process(self, piece: bytes, *, is_last: bool = False) -> None:
        newest = None
        for line, progress in self._logged(self._lines.feed(piece, is_last=is_last)):
            newest = progress or newest
            if line is not None:
                await self._on_line(line.text)
        self._log.flush()
        # A progress bar may not have a line end yet.
        newest = self.parser.progress(self._lines.unfinished) or newest
        if newest is not None and newest != self._last_progress:
            self._last_progress = newest
            await self._on_progress(newest)

    def log_only(self, piece: bytes) -> None:
        """Log output without calling the listeners."""
        for _ in self._logged(self._lines.feed(piece)):
            pass

    def _logged(self, lines: Iterable[Line]) -> Iterable[tuple[Line | None, ScriptProgress | None]]:
        for line in lines:
            end = "" if line.continues else "\n"
            progress = self.parser.add(line.text, end=end)
            # Only the last state of a progress bar is logged.
            if line.is_overwritten and progress is not None:
                yield None, progress
            else:
                self._log.write(line.text, end=end)
                yield line, progress
