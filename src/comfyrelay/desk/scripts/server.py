"""Wrap a desk's ComfyUI to run the user's script. A script and a graph share the GPU, so they never run together."""

import asyncio
import json
import shlex
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.outputs import OutputFile, RunResult
from comfyrelay.comfyui.runs.active_runs import ActiveRuns
from comfyrelay.comfyui.runs.events import EventListener, Noted, Printed, Queued, Started, Step, guard_listener
from comfyrelay.comfyui.runs.history import Prompt
from comfyrelay.desk.scripts.command import ScriptSettings, command_of
from comfyrelay.desk.scripts.errors import NO_REASON, refusal_in_log
from comfyrelay.desk.scripts.frozen_inputs import FrozenInputs
from comfyrelay.desk.scripts.output_parser import ScriptProgress, new_media
from comfyrelay.desk.scripts.runner import ScriptResult, ScriptRunner
from comfyrelay.desk.scripts.workflow import NODE_ID, SNAPSHOT, is_script, job_of, values_in
from comfyrelay.errors import ComfyError, NoOutput, OutputGone, ScriptFailed
from comfyrelay.http_client import save
from comfyrelay.system import files
from comfyrelay.text import storable
from comfyrelay.worker.comfyui.recovery import MARK
from comfyrelay.worker.comfyui.servers import JobServer
from comfyrelay.worker.state import HeldLease

# The type of a local file that neither ComfyUI nor the desk deletes.
SAVED = "script"
WATCH_SECONDS = 0.5
STOP_SECONDS = 10.0
# Limits for live log lines. The log file contains all lines.
MAX_LINES_PER_SECOND = 100
MAX_LINES = 20_000
MAX_LOG_FILES = 1000
CHUNK_BYTES = 1024 * 1024
# The detail with the prompts that were in ComfyUI's queue before the script started, which do not belong to the script.
QUEUED_BEFORE = "_queue_before"
# A shorter prompt may be part of another prompt by chance.
MIN_PART_LENGTH = 8


class ScriptServer:
    """Runs script documents as configured, and all other graphs on the wrapped ComfyUI."""

    def __init__(
        self,
        comfy: JobServer,
        settings: ScriptSettings,
        *,
        comfyui_url: str,
        snapshots: FrozenInputs,
        log_folder: Path,
        umask: int | None = None,
    ) -> None:
        self._comfy = comfy
        self._settings = settings
        # The address for the script, which may contain a secret.
        self._comfyui_url = comfyui_url
        self._log_folder = log_folder
        self._snapshots = snapshots
        self._umask = umask
        self._runs = ActiveRuns()
        self.check = comfy.check
        self.disconnected = comfy.disconnected
        self.upload = comfy.upload
        self.cancel = comfy.cancel
        self.wait_until_stopped = comfy.wait_until_stopped
        self.prompts = comfy.prompts
        self.log_lines = comfy.log_lines
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
            # A folder of inputs may take a day, so there is no timeout.
            return await self._runs.run(self._run_script(values_in(graph), guard_listener(on_event)))
        return await self._comfy.run(graph, on_event=on_event, **options)

    def read(self, file: OutputFile) -> AsyncIterator[bytes]:
        return _read_saved(file) if file.type == SAVED else self._comfy.read(file)

    async def download(self, file: OutputFile, to: Path) -> int:
        return await save(self.read(file), to)

    async def unfinished_prompts(self, held: HeldLease) -> list[str]:
        if not is_script(held.lease.graph):
            return await self._comfy.unfinished_prompts(held)
        if not held.runs:
            # The script had not started, so another script may have sent equal texts.
            return []
        # A script does not name its lease, but it sends the prompt that it was given.
        positive = str(values_in(held.lease.graph).get("positive") or "").strip()
        before = set(held.lease.about.get(QUEUED_BEFORE) or ())
        found = await self._prompts_since(before)
        return [prompt_id for prompt_id, prompt in found.items() if positive and _contains(prompt, positive)]

    async def _run_script(self, values: Mapping[str, Any], on_event: EventListener) -> RunResult:
        run_id = f"script-{uuid4()}"
        added = job_of(values)
        settings, job = await asyncio.to_thread(self._snapshots.restore, str(values[SNAPSHOT]), added)
        runner = ScriptRunner(settings, environment={"COMFYUI_BASE_URL": self._comfyui_url}, umask=self._umask)
        log_path = await asyncio.to_thread(_new_log, self._log_folder, run_id)
        before = set(await self._comfy.prompts())
        lines = _LiveLines(lambda line: on_event(Printed(prompt_id=run_id, line=line)))
        on_event(Queued(prompt_id=run_id))
        on_event(Started(prompt_id=run_id))
        argv = await asyncio.to_thread(command_of, settings, job)
        # Report the command first, so that the log always shows it.
        on_event(Noted(prompt_id=run_id, about={"argv": argv, "log": str(log_path), QUEUED_BEFORE: sorted(before)}))
        lines.write(f"$ {shlex.join(argv)}")
        if (settings, job) != (self._settings, added):
            lines.write("Template, inputs or arguments have changed. The job runs with the original ones.")
        lines.write(f"The complete output is in {log_path}")

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

        started_at = time.time()
        watching = asyncio.create_task(self._report_prompts(before, on_event))
        try:
            result = await runner.run(
                job, on_line=on_line, on_progress=on_progress, on_stopped=on_stopped, log_path=log_path
            )
            lines.end()
            if result.error == NO_REASON:
                result = replace(result, error=await self._logged_refusal() or NO_REASON)
            outputs = await self._outputs(result, started_at)
            about = _about(result, outputs, log_path)
            on_event(Noted(prompt_id=run_id, about=about))
            seconds = time.time() - started_at
            return _run_result(run_id, result, outputs, about, seconds=seconds, folder=settings.output_folder)
        except BaseException:
            # Remove the prompts that the script left in ComfyUI's queue.
            await self._runs.finish_stop(self._stop_prompts(before))
            raise
        finally:
            watching.cancel()

    async def _logged_refusal(self) -> str | None:
        """Return the reason that ComfyUI's log gives for refusing the last graph. Not every server has a log."""
        try:
            async with asyncio.timeout(STOP_SECONDS):
                return refusal_in_log(await self.log_lines())
        except (ComfyError, TimeoutError):
            return None

    async def _outputs(self, result: ScriptResult, started_at: float) -> Sequence[Path]:
        folder = self._settings.output_folder
        if result.outputs or result.exit_code or folder is None:
            return result.outputs
        # The script did not name its files, but its output folder is known.
        return await asyncio.to_thread(new_media, folder, since=started_at)

    async def _report_prompts(self, before: set[str], on_event: EventListener) -> None:
        """Report the prompts that the script sends to ComfyUI, so that they can be stopped even if the desk is
        killed."""
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
        # A prompt with a workflow is from ComfyUI's editor, and therefore from a person. Prompts of the desk are
        # marked.
        return {
            prompt_id: prompt
            for prompt_id, prompt in found.items()
            if prompt_id not in before and not prompt.extra_data.get("extra_pnginfo") and MARK not in prompt.extra_data
        }


async def _read_saved(file: OutputFile) -> AsyncIterator[bytes]:
    try:
        with await asyncio.to_thread(Path(file.subfolder, file.filename).open, "rb") as saved:
            while piece := await asyncio.to_thread(saved.read, CHUNK_BYTES):
                yield piece
    except OSError as error:
        raise OutputGone(f"The file {file.filename} that the script saved cannot be read.") from error


def _contains(prompt: Prompt, text: str) -> bool:
    """Whether an input of the prompt is this text, or contains it."""
    inputs = [node.get("inputs") for node in prompt.graph.values() if isinstance(node, dict)]
    values = [value.strip() for node in inputs if node for value in node.values() if isinstance(value, str)]
    return text in values or (len(text) >= MIN_PART_LENGTH and any(text in value for value in values))


def _about(result: ScriptResult, outputs: Sequence[Path], log_path: Path) -> dict[str, Any]:
    return {
        "argv": list(result.argv),
        "exit_code": result.exit_code,
        "outputs": [storable(str(output)) for output in outputs],
        "seed": result.seed,
        "log": str(log_path),
    }


def _run_result(
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
            "Set output_folder in [desk.script] to the folder that it saves files in."
            if folder is None
            else f"There are no new files in its output_folder {folder} either."
        )
        text = f"The script succeeded, but printed no path of a file that it saved in its folders. {advice}"
        raise NoOutput(text, raw=json.dumps(about))
    return RunResult(
        prompt_id=run_id,
        files=tuple(
            OutputFile(node_id=NODE_ID, filename=output.name, subfolder=str(output.parent), type=SAVED)
            for output in outputs
        ),
        seconds=seconds,
        about=about,
    )


class _LiveLines:
    """Limits the number of forwarded lines."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self.write = write
        self._since = float("-inf")
        self._in_second = 0
        self._forwarded = 0
        self._omitted = 0

    def add(self, line: str) -> None:
        now = time.monotonic()
        if now - self._since >= 1.0:
            self._since, self._in_second = now, 0
        if self._in_second >= MAX_LINES_PER_SECOND or self._forwarded >= MAX_LINES:
            self._omitted += 1
            return
        self.end()
        self._in_second += 1
        self._forwarded += 1
        self.write(line)

    def end(self) -> None:
        """Report the number of lines omitted since the last forwarded one."""
        if self._omitted:
            self.write(f"[… {self._omitted:,} lines are in the log file only …]")
            self._omitted = 0


def _new_log(folder: Path, run_id: str) -> Path:
    """Return the path of a new log, and delete the oldest logs."""
    folder.mkdir(parents=True, exist_ok=True)
    # Names start with the time, so they sort by age.
    for old in sorted(folder.glob("*.log"))[: -MAX_LOG_FILES + 1]:
        files.remove(old, missing_ok=True)
    return folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{run_id[-12:]}.log"
