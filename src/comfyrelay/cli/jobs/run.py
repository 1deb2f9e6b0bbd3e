"""`comfyrelay run`: run one job on the running desk or server, or on a desk that is started for it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comfyrelay.cli.jobs.connection import Url
from comfyrelay.cli.jobs.submit_options import Anyway, MaxWait, Preset, Reuse, Values, What, base_values
from comfyrelay.cli.jobs.targets import (
    NEEDS_INPUT,
    SubmitTarget,
    check_files,
    errors_with_options,
    find_target,
    needs_input_file,
    remove_added,
    send_files,
)
from comfyrelay.cli.options import Json
from comfyrelay.cli.output import err, print_json, print_line, print_note
from comfyrelay.cli.target import find_url
from comfyrelay.cli.unknown_settings import warn_of_unread_file
from comfyrelay.clock import utc_now
from comfyrelay.domain.queue.states import JobStatus
from comfyrelay.errors import ComfyRelayError, ControlPlaneUnreachable, InvalidInput, NotFound, TransferFailed
from comfyrelay.extras import require
from comfyrelay.protocol.progress import Progress
from comfyrelay.text import printable

if TYPE_CHECKING:
    from comfyrelay.client import Client, Job

FAILED = 1
WAIT_REASON_SECONDS = 3.0
# Longer text outputs are truncated on the terminal. The saved file is complete.
MAX_TEXT_LENGTH = 100_000


def run(
    what: What,
    values: Values = None,
    input_: Annotated[Path | None, typer.Option("--input", help="The image, video or audio file to work on.")] = None,
    as_input: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Use the file WHAT as input of this effect, workflow or file."),
    ] = None,
    preset: Preset = None,
    to: Annotated[Path, typer.Option("--out", help="Folder for the outputs.")] = Path(),
    max_wait: MaxWait = None,
    anyway: Anyway = False,
    reuse: Reuse = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Run a workflow or effect once, and save its outputs.

    If no desk or server runs, the command starts a desk for this job. The exit code is 1 if the job fails.
    """
    if as_input is not None:
        if input_ is not None:
            raise InvalidInput("--input and --as-input both name the input: give only one of them.")
        what, input_ = as_input, Path(what)
    if input_ is not None and input_.is_dir():
        raise InvalidInput(
            f"{input_} is a folder. Use `comfyrelay batch add` to run the workflow on each of its files."
        )
    check_files(what, [] if input_ is None else [input_])
    _check_embedded(what, values or [], has_input=input_ is not None, is_quiet=as_json)
    _make_folder(to)
    request = _RunCommand(
        what=what,
        values=values or [],
        input=input_,
        preset=preset,
        is_quiet=as_json,
        options={"wait_for_missing": anyway, "max_wait_seconds": max_wait, "reuse": reuse},
    )
    job, saved = asyncio.run(_run_to_end(request, url, to))
    if as_json:
        print_json({**job.model_dump(mode="json"), "saved": saved})
    else:
        _print_texts(job, saved)
        for path in saved:
            print_line(path)
    if job.status != JobStatus.COMPLETED:
        reason = f": {job.error}" if job.status == JobStatus.FAILED and job.error else "."
        print_note(f"The job {'was canceled' if job.status == JobStatus.CANCELED else job.status}{reason}")
        raise typer.Exit(FAILED)


def _check_embedded(what: str, values: list[str], *, has_input: bool, is_quiet: bool) -> None:
    """Before a desk is started, refuse a workflow without its input, and tell the user if an embedded workflow is
    rerun."""
    from comfyrelay.comfyui.editor.loading import load_workflow, may_hold_workflow

    path = Path(what)
    if not may_hold_workflow(path):
        return
    graph, is_embedded = load_workflow(path), path.suffix.lower() != ".json"
    advice = "To work on the file itself: --as-input NAME."
    if not has_input and needs_input_file(graph, values):
        if not is_embedded:
            raise InvalidInput(NEEDS_INPUT)
        raise InvalidInput(
            f"{what} contains the workflow that made it, but not its input: name it with --input. {advice}"
        )
    if is_embedded and not is_quiet:
        text = f"{what} contains the workflow that made it, which runs again with the same values. {advice}"
        print_note(text, style="dim")


@dataclass(frozen=True, kw_only=True)
class _RunCommand:
    """The arguments of `run`."""

    what: str
    values: list[str]
    input: Path | None
    preset: str | None
    is_quiet: bool
    options: Mapping[str, Any]

    async def send(self, client: Client, added: set[str]) -> Job:
        target = await find_target(client, self.what, self.values, added)
        values = await base_values(client, self.what, target, preset=self.preset, keeps_seeds=True)
        input_ids, files = await send_files(client, target, [] if self.input is None else [self.input])
        payload = values | files
        if not self.is_quiet:
            await _print_script_command(client, target, payload)
        with errors_with_options(target, has_input=bool(input_ids)):
            input_file_id = next(iter(input_ids), None)
            return await client.submit(
                **target.named, input_payload=payload, input_file_id=input_file_id, **self.options
            )


async def _run_to_end(request: _RunCommand, url: str | None, folder: Path) -> tuple[Job, list[Path]]:
    async with _connect(url) as client, remove_added(client, request.what) as added:
        job = await request.send(client, added)
        explains = request.options["wait_for_missing"] and not request.is_quiet
        shown = await _print_missing(client, job.id) if explains else None
        await _follow(client, job.id, is_quiet=request.is_quiet, shown=shown)
        job = await client.job(job.id)
        return job, await _save(client, job.id, folder) if job.status == JobStatus.COMPLETED else []


def _print_texts(job: Job, saved: list[Path]) -> None:
    for output, path in zip(job.outputs, saved, strict=False):
        if output.mime_type.partition(";")[0] == "text/plain":
            text = path.read_text("utf-8", errors="replace")
            for line in text[:MAX_TEXT_LENGTH].splitlines():
                print_line(printable(line))
            if len(text) > MAX_TEXT_LENGTH:
                print_note("The text is longer. The saved file is complete.")


def _make_folder(folder: Path) -> None:
    """Check before the job runs that its outputs can be saved."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except FileExistsError:
        raise InvalidInput(f"--out: {folder} is a file, not a folder.") from None
    except OSError as error:
        raise InvalidInput(f"--out: {folder} is not writable: {error.strerror}.") from None


async def _save(client: Client, job_id: str, folder: Path) -> list[Path]:
    try:
        return await client.download_outputs(job_id, folder)
    except ComfyRelayError as error:
        location = f"`comfyrelay show {job_id}` shows where it is."
        with suppress(ComfyRelayError):
            about = await client.about(job_id)
            if about is not None and about.files:
                location = f"It is at {', '.join(file.path for file in about.files)}."
        raise TransferFailed(f"Job {job_id} completed, but its output was not saved: {error} {location}") from error


@asynccontextmanager
async def _connect(url: str | None) -> AsyncIterator[Client]:
    """Connect to the running desk or server. If none runs, start a desk until the block ends."""
    from comfyrelay.client import Client
    from comfyrelay.settings import load_settings

    settings = load_settings()
    token = os.environ.get("COMFYRELAY_TOKEN")
    async with Client(find_url(url, settings), token=token) as client:
        try:
            await client.desk()
        except NotFound:
            # This is a server, not a desk.
            yield client
            return
        except ControlPlaneUnreachable:
            if url is not None:
                raise
        else:
            yield client
            return
        require("desk")
        warn_of_unread_file()
        from comfyrelay.configuration import settings_file
        from comfyrelay.desk.desk import Desk
        from comfyrelay.desk.scripts.config import load_script_table
        from comfyrelay.desk.settings import load_desk_settings
        from comfyrelay.worker.console import WorkerConsole

        # Only the result is printed to standard output.
        with WorkerConsole(level="warning", is_for_machines=False, shows_jobs=False):
            print_note("ComfyRelay is not running here, so it is started for this job.", style="dim")
            desk, script = load_desk_settings(), load_script_table()
            async with Desk(settings=settings, desk=desk, script=script, config_file=settings_file()).open():
                yield client


async def _print_script_command(client: Client, target: SubmitTarget, payload: Mapping[str, Any]) -> None:
    """Print the command of the user's own script if the job runs that script."""
    slug = target.named.get("workflow_slug")
    if slug is None or slug != await client.script_workflow():
        return
    known = {property_.key: property_.default_value for property_ in target.properties}
    given = {**known, "positive": "", "input_subdir": "", **payload}
    values = {key: value for key, value in given.items() if value is not None}
    print_note(f"$ {await client.script_command(values)}")


async def _follow(client: Client, job_id: str, *, is_quiet: bool, shown: str | None = None) -> None:
    """Show a progress bar until the job has ended; Ctrl-C cancels the job."""
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as ProgressDisplay

    from comfyrelay.client import render

    columns = (
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    started_at: datetime | None = None
    with ProgressDisplay(*columns, console=err, transient=True, disable=is_quiet or not sys.stderr.isatty()) as bar:
        task = bar.add_task("waiting", total=1.0)
        explaining = asyncio.create_task(_print_wait_reasons(client, job_id, shown, is_quiet=is_quiet))
        try:
            async for event in client.events(job_id):
                if event.type == "progress":
                    explaining.cancel()
                    started_at = started_at or utc_now()
                    progress = Progress.from_report(event.data)
                    text = render.progress_text(progress, started_at, utc_now()) or "running"
                    bar.update(task, completed=progress.fraction or 0.0, description=text)
        except asyncio.CancelledError:
            await _cancel(client, job_id)
            raise
        finally:
            explaining.cancel()


async def _cancel(client: Client, job_id: str) -> None:
    try:
        print_note(f"Job {job_id}: {(await client.cancel('job', job_id)).message}")
    except ComfyRelayError as error:
        print_note(f"Job {job_id} could not be canceled: {error} It continues: `comfyrelay show {job_id}`.")


async def _print_missing(client: Client, job_id: str) -> str | None:
    """Print missing requirements at once, because the user may leave before `_follow` prints them. Returns the wait
    reason."""
    waiting = (await client.job(job_id)).waiting
    if waiting is not None and waiting.reason == "missing":
        print_note(f"{waiting.text} Ctrl-C cancels the job; `comfyrelay show {job_id}` shows its progress.")
        return waiting.reason
    return None


async def _print_wait_reasons(client: Client, job_id: str, shown: str | None, *, is_quiet: bool) -> None:
    """Print each wait reason once, to explain why the progress bar does not move."""
    while not is_quiet:
        await asyncio.sleep(WAIT_REASON_SECONDS)
        # The event stream reports errors.
        with suppress(ComfyRelayError):
            waiting = (await client.job(job_id)).waiting
            if waiting is not None and waiting.reason != shown:
                shown = waiting.reason
                print_note(waiting.text)
