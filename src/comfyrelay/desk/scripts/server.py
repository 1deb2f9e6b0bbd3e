"""A ComfyUI of the desk beside which the user's script runs: never together with a graph, for they share a GPU."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.outputs import OutputFile, RunResult
from comfyrelay.comfyui.runs.active_runs import RunsUnderWay
from comfyrelay.comfyui.runs.events import EventListener, Noted, Printed, Queued, Started, Step
from comfyrelay.comfyui.runs.history import Prompt
from comfyrelay.comfyui.runs.streams import safely
from comfyrelay.desk.scripts.command import shown
from comfyrelay.desk.scripts.frozen_inputs import FrozenInputs
from comfyrelay.desk.scripts.output_parser import new_media
from comfyrelay.desk.scripts.runner import ScriptProgress, ScriptResult, ScriptRunner, ScriptSettings
from comfyrelay.desk.scripts.workflow import NODE_ID, SNAPSHOT, is_script, job_of, values_in
from comfyrelay.errors import ComfyError, NoOutput, OutputGone, ScriptFailed
from comfyrelay.http_client import save
from comfyrelay.system import files
from comfyrelay.text import storable
from comfyrelay.worker.comfyui.recovery import MARK
from comfyrelay.worker.comfyui.servers import JobServer
from comfyrelay.worker.state import HeldLease

# A file on this machine's disk, and neither ComfyUI's nor ours to remove.
SAVED = "script"
WATCH_SECONDS = 0.5
STOP_SECONDS = 10.0
# What a person can follow, and what a queue can keep. The log file has everything.
LINES_A_SECOND = 100
MOST_LINES = 20_000
MOST_LOG_FILES = 1000
PIECE_BYTES = 1024 * 1024
# What was in ComfyUI's queue before the script began: none of it is the script's.
BEFORE = "_queue_before"
FEWEST_CHARACTERS = 8


class ScriptServer:
    """Runs the document of a script as the configuration says, and every other graph on the ComfyUI behind it."""

    def __init__(
        self,
        comfy: JobServer,
        settings: ScriptSettings,
        *,
        snapshots: FrozenInputs,
        log_folder: Path,
        umask: int | None = None,
    ) -> None:
        self._comfy = comfy
        self._settings = settings
        self._log_folder = log_folder
        self._snapshots = snapshots
        self._umask = umask
        self._runs = RunsUnderWay()
        self.check = comfy.check
        self.disconnected = comfy.disconnected
        self.upload = comfy.upload
        self.cancel = comfy.cancel
        self.until_stopped = comfy.until_stopped
        self.prompts = comfy.prompts
        self.object_info = comfy.object_info
        self.preflight = comfy.preflight

    @property
    def url(self) -> str:
        return self._comfy.url

    @property
    def slots(self) -> int:
        return self._comfy.slots

    @property
    def queue_remaining(self) -> int | None:
        return self._comfy.queue_remaining

    async def close(self) -> None:
        await self._runs.close()
        await self._comfy.close()

    async def run(self, graph: Graph, *, on_event: EventListener | None = None, **options: Any) -> RunResult:
        if is_script(graph):
            # a folder of inputs may take a day: nobody but the user says when it is too long
            return await self._runs.keep(self._run_script(values_in(graph), safely(on_event)))
        return await self._comfy.run(graph, on_event=on_event, **options)

    def read(self, file: OutputFile) -> AsyncIterator[bytes]:
        return _read_saved(file) if file.type == SAVED else self._comfy.read(file)

    async def download(self, file: OutputFile, to: Path) -> int:
        return await save(self.read(file), to)

    async def unfinished_prompts(self, held: HeldLease) -> list[str]:
        if not is_script(held.lease.graph):
            return await self._comfy.unfinished_prompts(held)
        if not held.runs:
            # it was not begun: another one that has the same words may have been
            return []
        # a script does not name its lease, but it sends the words that it was given
        words = str(values_in(held.lease.graph).get("positive") or "").strip()
        before = set(held.lease.about.get(BEFORE) or ())
        found = await self._prompts_since(before)
        return [each for each, prompt in found.items() if words and _has(prompt, words)]

    async def _run_script(self, values: Mapping[str, Any], on_event: EventListener) -> RunResult:
        run_id = f"script-{uuid4()}"
        added = job_of(values)
        settings, job = await asyncio.to_thread(self._snapshots.restore, str(values[SNAPSHOT]), added)
        runner = ScriptRunner(settings, environment={"COMFYUI_BASE_URL": self._comfy.url}, umask=self._umask)
        log_path = await asyncio.to_thread(_new_log, self._log_folder, run_id)
        before = set(await self._comfy.prompts())
        lines = _Lines(lambda line: on_event(Printed(prompt_id=run_id, line=line)))
        on_event(Queued(prompt_id=run_id))
        on_event(Started(prompt_id=run_id))
        argv = await asyncio.to_thread(runner.command, job)
        # first of all: whatever becomes of it, this is what was run
        on_event(Noted(prompt_id=run_id, about={"argv": argv, "log": str(log_path), BEFORE: sorted(before)}))
        lines.write(f"$ {shown(argv)}")
        if (settings, job) != (self._settings, added):
            lines.write("Template, inputs or arguments have changed since: it runs with those that it was added with.")
        lines.write(f"Everything that it prints is in {log_path}")

        async def on_line(line: str) -> None:
            lines.add(line)

        async def on_progress(progress: ScriptProgress) -> None:
            on_event(
                Step(
                    prompt_id=run_id,
                    node_id=NODE_ID,
                    value=float(progress.item or 0),
                    maximum=float(progress.items or 0),
                    progress=progress.fraction,
                )
            )

        def on_stopped(result: ScriptResult) -> None:
            on_event(Noted(prompt_id=run_id, about=_about(result, result.outputs, log_path)))

        begun = time.time()
        watching = asyncio.create_task(self._report_prompts(before, on_event))
        try:
            result = await runner.run(
                job, on_line=on_line, on_progress=on_progress, on_stopped=on_stopped, log_path=log_path
            )
            lines.end()
            outputs = await self._outputs(result, begun)
            about = _about(result, outputs, log_path)
            on_event(Noted(prompt_id=run_id, about=about))
            return _judged(run_id, result, outputs, about, seconds=time.time() - begun, folder=settings.output_folder)
        except BaseException:
            # nobody waits any more for what the script has left in ComfyUI's queue
            await self._runs.finish_stop(self._stop_prompts(before))
            raise
        finally:
            watching.cancel()

    async def _outputs(self, result: ScriptResult, begun: float) -> Sequence[Path]:
        folder = self._settings.output_folder
        if result.outputs or result.exit_code or folder is None:
            return result.outputs
        # it does not say what it saves, but we know where
        return await asyncio.to_thread(new_media, folder, since=begun)

    async def _report_prompts(self, before: set[str], on_event: EventListener) -> None:
        """Report what the script sends to ComfyUI, so that it can be stopped even if we are killed."""
        known: set[str] = set()
        while True:
            with suppress(ComfyError):
                for prompt_id in (await self._prompts_since(before)).keys() - known:
                    known.add(prompt_id)
                    on_event(Queued(prompt_id=prompt_id))
            await asyncio.sleep(WATCH_SECONDS)

    async def _stop_prompts(self, before: set[str]) -> None:
        with suppress(ComfyError, TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                for prompt_id in await self._prompts_since(before):
                    await self._comfy.cancel(prompt_id)

    async def _prompts_since(self, before: set[str]) -> dict[str, Prompt]:
        found = await self._comfy.prompts()
        return {each: prompt for each, prompt in found.items() if each not in before and _is_of_script(prompt)}


async def _read_saved(file: OutputFile) -> AsyncIterator[bytes]:
    try:
        with await asyncio.to_thread(Path(file.subfolder, file.filename).open, "rb") as saved:
            while piece := await asyncio.to_thread(saved.read, PIECE_BYTES):
                yield piece
    except OSError as error:
        raise OutputGone(f"The file {file.filename} that the script saved cannot be read.") from error


def _is_of_script(prompt: Prompt) -> bool:
    # ComfyUI's editor sends its own file along: that is a person at work. And what we sent is marked.
    return not prompt.extra_data.get("extra_pnginfo") and MARK not in prompt.extra_data


def _has(prompt: Prompt, words: str) -> bool:
    """Whether they are one of its texts, or a part of one, which with very few letters says nothing."""
    inputs = [node.get("inputs") for node in prompt.graph.values() if isinstance(node, dict)]
    texts = [value.strip() for node in inputs if node for value in node.values() if isinstance(value, str)]
    return words in texts or (len(words) >= FEWEST_CHARACTERS and any(words in text for text in texts))


def _about(result: ScriptResult, outputs: Sequence[Path], log_path: Path) -> dict[str, Any]:
    return {
        "argv": list(result.argv),
        "exit_code": result.exit_code,
        "outputs": [storable(str(each)) for each in outputs],
        "seed": result.seed,
        "log": str(log_path),
    }


def _judged(
    run_id: str,
    result: ScriptResult,
    outputs: Sequence[Path],
    about: Mapping[str, Any],
    *,
    seconds: float,
    folder: Path | None,
) -> RunResult:
    if result.exit_code:
        raise ScriptFailed(result.error, raw=json.dumps(about))
    if not outputs:
        advice = (
            "Set output_folder in [desk.script] to the folder that it saves in."
            if folder is None
            else f"There is nothing new in its output_folder, {folder}, either."
        )
        text = f"The script ended well, but names no file that it saved in its own folders. {advice}"
        raise NoOutput(text, raw=json.dumps(about))
    return RunResult(
        prompt_id=run_id,
        files=tuple(
            OutputFile(node_id=NODE_ID, filename=each.name, subfolder=str(each.parent), type=SAVED) for each in outputs
        ),
        seconds=seconds,
        about=about,
    )


class _Lines:
    """What a script prints, as much of it as can be followed."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self.write = write
        self._since = float("-inf")
        self._in_second = 0
        self._passed_on = 0
        self._omitted = 0

    def add(self, line: str) -> None:
        now = time.monotonic()
        if now - self._since >= 1.0:
            self._since, self._in_second = now, 0
        if self._in_second >= LINES_A_SECOND or self._passed_on >= MOST_LINES:
            self._omitted += 1
            return
        self.end()
        self._in_second += 1
        self._passed_on += 1
        self.write(line)

    def end(self) -> None:
        """Say how many lines were left out since the last one that was not."""
        if self._omitted:
            self.write(f"[… {self._omitted:,} lines are in the log file only …]")
            self._omitted = 0


def _new_log(folder: Path, run_id: str) -> Path:
    """Where the log goes; the oldest ones make room for it."""
    folder.mkdir(parents=True, exist_ok=True)
    # names begin with the time, so they sort by age
    for old in sorted(folder.glob("*.log"))[: -MOST_LOG_FILES + 1]:
        files.remove(old, missing_ok=True)
    return folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{run_id[-12:]}.log"
