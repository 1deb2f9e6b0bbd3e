"""`comfyrelay run` and `comfyrelay batch add`: work for the desk, which is started when it is not running."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from comfyrelay.cli import completion
from comfyrelay.cli.jobs import APPRISE, Json, Url, connected, print_json
from comfyrelay.cli.run_arguments import (
    SubmitTarget,
    check_files,
    errors_as_typed,
    find_target,
    lacks_its_file,
    refused_leaves_nothing,
    send_files,
)
from comfyrelay.cli.target import address
from comfyrelay.clock import utc_now
from comfyrelay.domain.bulk import Mode, SeedMode
from comfyrelay.domain.queue.states import JobStatus
from comfyrelay.errors import ComfyRelayError, ControlPlaneUnreachable, InvalidInput, NotFound, TransferFailed
from comfyrelay.extras import require
from comfyrelay.protocol.progress import Progress
from comfyrelay.text import printable

if TYPE_CHECKING:
    from comfyrelay.client import Batch, Client, Done, Job

DESK = "On your own machine"

run_app = typer.Typer()
batch_app = typer.Typer(no_args_is_help=True, help="Many jobs at once: a folder of inputs, a list of prompts.")
run_app.add_typer(batch_app, name="batch", rich_help_panel=DESK)
out = Console()
err = Console(stderr=True)

FAILED = 1
WAITING_SECONDS = 3.0
# What is printed of a text, in characters; the file that is saved has all of it.
LONGEST_TEXT = 100_000
# As long as the name of a batch may be.
LONGEST_LABEL = 200
What = Annotated[
    str,
    typer.Argument(
        metavar="WHAT",
        help="A file (a workflow saved in ComfyUI, or a picture, video or audio file that ComfyUI made), the name of "
        "an effect, or of a workflow.",
        autocompletion=completion.runnable,
    ),
]
Values = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="PROPERTY=VALUE, or NODE.INPUT=VALUE of a graph (node by id or title); for a further image, video or "
        "audio file the VALUE is its path. Repeat for more.",
    ),
]

Anyway = Annotated[
    bool,
    typer.Option(
        "--anyway",
        help="Add it though no worker has all that it needs: it waits until one has. Of a file of ComfyUI's editor "
        "whose nodes are missing no job can be made yet: `comfyrelay workflows add FILE --anyway` keeps it, and it "
        "becomes runnable by itself when a worker brings them.",
    ),
]
Reuse = Annotated[
    bool,
    typer.Option(
        "--reuse",
        help="If an equal job of yours is done already, take a copy of its output: at once, and for free. Give a "
        "seed, or no job is equal to another.",
    ),
]
MaxWait = Annotated[
    int | None,
    typer.Option(
        min=0, max=31_536_000, metavar="SECONDS", help="How long it may wait before it may go where it costs more."
    ),
]


@run_app.command("run", rich_help_panel=DESK)
def run(
    what: What,
    values: Values = None,
    input_: Annotated[
        Path | None, typer.Option("--input", help="The image, video or audio file that it works on.")
    ] = None,
    as_input: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Do not run the workflow that the file WHAT carries: run this effect, workflow or file on it.",
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="A preset whose values it has; --set overrides them.", autocompletion=completion.presets),
    ] = None,
    to: Annotated[Path, typer.Option("--out", help="The folder for the outputs.")] = Path(),
    max_wait: MaxWait = None,
    anyway: Anyway = False,
    reuse: Reuse = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Run a workflow once, from a file or by its name, and save what it makes; exit code 1 and a reason if it fails."""
    # before anything is started for it
    from comfyrelay.comfyui.editor.loading import load_workflow, may_hold_workflow

    if as_input is not None:
        if input_ is not None:
            raise InvalidInput("--input and --as-input both name what is worked on: give one of them.")
        what, input_ = as_input, Path(what)
    if input_ is not None and input_.is_dir():
        raise InvalidInput(f"{input_} is a folder: `comfyrelay batch add` runs it on each file of a folder.")
    check_files(what, [] if input_ is None else [input_])
    if may_hold_workflow(Path(what)):
        graph, is_made = load_workflow(Path(what)), Path(what).suffix.lower() != ".json"
        itself = "To work on the file itself: --as-input NAME."
        if input_ is None and lacks_its_file(graph, values or []):
            carried = f"{what} carries the workflow that made it, but not the file that it worked on: name that with"
            raise InvalidInput(
                f"{carried} --input. {itself}" if is_made else "It works on a file: name one with --input."
            )
        if is_made and not as_json:
            again = f"{what} carries the workflow that made it, which is run again, with every value as it was."
            text = f"{again} {itself}"
            err.print(text, highlight=False, markup=False, soft_wrap=True, style="dim")
    _make_folder(to)

    async def submitted(client: Client) -> Job:
        target = await find_target(client, what, values or [])
        _show_remarks(target)
        of_preset = {} if preset is None else await _preset(client, preset, target)
        works_on, files = await send_files(client, target, [] if input_ is None else [input_])
        payload = {**_as_it_was(what, target), **of_preset, **target.values, **files}
        if not as_json:
            await _show_command(client, target, payload)
        with errors_as_typed(target, has_input=bool(works_on)):
            return await client.submit(
                **target.named,
                input_payload=payload,
                input_file_id=next(iter(works_on), None),
                wait_for_missing=anyway,
                max_wait_seconds=max_wait,
                reuse=reuse,
            )

    async def work() -> tuple[Job, list[Path]]:
        async with _desk(url) as client:
            async with refused_leaves_nothing(client, what):
                job = await submitted(client)
            shown = await _show_what_is_missing(client, job.id) if anyway and not as_json else None
            await _follow(client, job.id, is_quiet=as_json, shown=shown)
            job = await client.job(job.id)
            return job, await _saved(client, job.id, to) if job.status == JobStatus.COMPLETED else []

    job, saved = asyncio.run(work())
    if as_json:
        print_json({**job.model_dump(mode="json"), "saved": saved})
    if not as_json:
        _print_texts(job, saved)
    for each in [] if as_json else saved:
        out.print(str(each), highlight=False, markup=False, soft_wrap=True)
    if job.status != JobStatus.COMPLETED:
        reason = f": {job.error}" if job.status == JobStatus.FAILED and job.error else "."
        ended = f"The job {'was canceled' if job.status == JobStatus.CANCELED else job.status}{reason}"
        err.print(ended, highlight=False, markup=False, soft_wrap=True)
        raise typer.Exit(FAILED)


def _as_it_was(what: str, target: SubmitTarget) -> dict[str, Any]:
    """What ComfyUI made is made again with the seeds that it had; a workflow gets new ones."""
    from comfyrelay.comfyui.editor.loading import may_hold_workflow

    path = Path(what)
    is_made = may_hold_workflow(path) and path.suffix.lower() != ".json"
    return {each.key: each.default_value for each in target.properties if is_made and each.role == "seed"}


def _as_in_picture(what: str, target: SubmitTarget, wish: Mapping[str, Any]) -> dict[str, Any]:
    """The same in a batch, unless it is about other seeds."""
    return _as_it_was(what, target) if wish["tries"] == 1 and wish["seeds"] is None else {}


def _show_remarks(target: SubmitTarget) -> None:
    for each in target.remarks:
        err.print(each, highlight=False, markup=False, soft_wrap=True)


def _print_texts(job: Job, saved: list[Path]) -> None:
    """Whoever runs a graph that makes a text wants to read it."""
    for output, path in zip(job.outputs, saved, strict=False):
        if output.mime_type.partition(";")[0] == "text/plain":
            text = path.read_text("utf-8", errors="replace")
            for line in text[:LONGEST_TEXT].splitlines():
                out.print(printable(line), highlight=False, markup=False, soft_wrap=True)
            if len(text) > LONGEST_TEXT:
                err.print("The text is longer than this: its file has all of it.")


def _make_folder(folder: Path) -> None:
    """Tried first: when the job has run it is late to learn that there is no place for what it made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except FileExistsError:
        raise InvalidInput(f"--out: {folder} is a file, not a folder.") from None
    except OSError as error:
        raise InvalidInput(f"--out: Nothing can be written to {folder}: {error.strerror}.") from None


async def _saved(client: Client, job_id: str, folder: Path) -> list[Path]:
    try:
        return await client.download_outputs(job_id, folder)
    except ComfyRelayError as error:
        kept = f"`comfyrelay show {job_id}` says where it is kept."
        with suppress(ComfyRelayError):
            about = await client.about(job_id)
            if about is not None and about.files:
                kept = f"It is kept at {', '.join(each.path for each in about.files)}."
        raise TransferFailed(f"Job {job_id} completed, but what it made was not saved: {error} {kept}") from error


@batch_app.command("add")
def batch_add(
    what: What,
    inputs: Annotated[
        list[Path] | None, typer.Option("--input", help="A file, or a folder of files, to work on. Repeat for more.")
    ] = None,
    input_subdir: Annotated[
        list[str] | None, typer.Option(help="A folder inside the desk's input folder. Repeat for more.")
    ] = None,
    prompts: Annotated[list[str] | None, typer.Option("--prompt", help="A prompt. Repeat for more.")] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="Prompts, one in each line, or blocks between ---.")] = None,
    negatives: Annotated[
        list[str] | None, typer.Option("--negative", help="A negative prompt. Repeat for more.")
    ] = None,
    tries: Annotated[int, typer.Option(help="How many times each is run.", min=1, max=1000)] = 1,
    seed_mode: Annotated[
        SeedMode | None,
        typer.Option(help="Which seeds the items get. If not given: random ones, where there is a seed."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="The seed of all, or the first one to count from.", min=0, max=2**64 - 1)
    ] = None,
    pairwise: Annotated[bool, typer.Option("--pairwise", help="Input n with prompt n, not all combinations.")] = False,
    values: Values = None,
    preset: Annotated[
        str | None,
        typer.Option(help="A preset whose values all items have.", autocompletion=completion.presets),
    ] = None,
    label: Annotated[str | None, typer.Option(help="What the batch is called; else as what it runs.")] = None,
    output_folder: Annotated[str | None, typer.Option(help="Its folder inside the desk's output folder.")] = None,
    priority: Annotated[int, typer.Option(help="Higher goes first.")] = 0,
    max_wait: MaxWait = None,
    notify: Annotated[
        list[str] | None, typer.Option(help=f"Who is notified of its end: {APPRISE} Repeat for more.")
    ] = None,
    anyway: Anyway = False,
    reuse: Reuse = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Add a batch to a running desk or server: inputs × prompts × negative prompts × tries, each with its own seed."""
    from comfyrelay.desk.batches.folders import prompts_from

    texts = [*(prompts or []), *(prompts_from(prompt_file) if prompt_file else [])]
    files = [file for path in inputs or [] for file in (_media_in(path) if path.is_dir() else [path])]
    check_files(what, files)
    wish: dict[str, Any] = {
        "label": label,
        "input_subdir": input_subdir or None,
        "prompts": texts,
        "negative_prompts": negatives or [],
        "tries": tries,
        "seeds": _seeds(seed_mode, seed),
        "mode": "pairwise" if pairwise else "product",
        "preset": preset,
        "output_folder": output_folder,
        "priority": priority,
        "notify_urls": notify,
        "wait_for_missing": anyway or None,
        "reuse": reuse or None,
    }

    async def work(client: Client) -> Done[Batch]:
        if not await client.is_desk():
            _refuse_without_desk(client.url, input_subdir=input_subdir, output_folder=output_folder, notify=notify)
            return await _add_to_server(client, what, values or [], files, {**wish, "max_wait_seconds": max_wait})
        if max_wait is not None:
            raise InvalidInput("--max-wait: the batches of a desk wait as long as it takes. Leave it out.")
        target = await find_target(client, what, values or [])
        _show_remarks(target)
        # an effect is named by its slug
        named = {"effect_slug": what} if "effect_id" in target.named else target.named
        works_on, others = await send_files(client, target, files)
        given = {
            **wish,
            **named,
            "label": label or target.title[:LONGEST_LABEL],
            "values": {**_as_in_picture(what, target, wish), **target.values, **others},
            "input_file_ids": works_on,
        }
        with errors_as_typed(target, has_input=bool(works_on or input_subdir)):
            return await client.add_batch_with_message(given)

    async def added_whole(client: Client) -> Done[Batch]:
        async with refused_leaves_nothing(client, what):
            return await work(client)

    added = connected(url, added_whole)
    batch, remark = added.data, added.message.removeprefix("Submitted.").strip()
    if remark:
        err.print(remark, highlight=False, markup=False, soft_wrap=True)
    if as_json:
        print_json(batch)
    else:
        jobs = "1 job" if batch.total == 1 else f"{batch.total} jobs"
        out.print(f"Added batch {batch.id} with {jobs}.", highlight=False, soft_wrap=True)


def _refuse_without_desk(url: str, **options: object) -> None:
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value]
    if given:
        raise InvalidInput(
            f"{', '.join(given)}: only a desk has folders and notifications of its owner, and {url} is a server. Name "
            "files with --input; `comfyrelay show` says where the outputs are."
        )


async def _add_to_server(
    client: Client, what: str, given: list[str], files: list[Path], wish: Mapping[str, Any]
) -> Done[Batch]:
    """A server takes items: which they are is found out here, as a desk does it."""
    from comfyrelay.client import Done
    from comfyrelay.desk.batches.expand import SeedPlan, expand
    from comfyrelay.desk.batches.planning import roles_of, seed_plan

    target = await find_target(client, what, given)
    _show_remarks(target)
    works_on, others = await send_files(client, target, files)
    # by their names, which are part of the labels
    named: list[Path | str] = [*files] or [each for key, each in target.files.items() if key == target.primary]
    ids = dict(zip(named, works_on, strict=True))
    of_preset = {} if wish["preset"] is None else await _preset(client, wish["preset"], target)
    base = {**_as_in_picture(what, target, wish), **of_preset, **target.values, **others}
    properties = target.as_properties()
    seeds = None if wish["seeds"] is None else SeedPlan(**wish["seeds"])
    items = expand(
        inputs=named,
        prompts=wish["prompts"],
        negatives=wish["negative_prompts"],
        tries=wish["tries"],
        seeds=seed_plan(properties, seeds, base),
        mode=Mode(wish["mode"]),
        base=base,
        roles=roles_of(properties),
    )
    bodies = [
        {
            "input_payload": dict(each.payload),
            "input_file_id": None if each.input is None else ids[each.input],
            "label": each.label or None,
        }
        for each in items
    ]
    with errors_as_typed(target, has_input=bool(works_on)):
        batch = await client.submit_batch(
            bodies,
            **target.named,
            label=wish["label"] or target.title[:LONGEST_LABEL],
            priority=wish["priority"],
            wait_for_missing=bool(wish["wait_for_missing"]),
            max_wait_seconds=wish["max_wait_seconds"],
            reuse=bool(wish["reuse"]),
        )
    return Done(batch, "")


def _media_in(folder: Path) -> list[Path]:
    from comfyrelay.desk.batches.folders import inputs_in

    found = inputs_in(folder)
    if not found:
        raise InvalidInput(f"There are no images, videos or audio files in {str(folder)!r}.")
    return found


def _seeds(mode: SeedMode | None, start: int | None) -> dict[str, Any] | None:
    if mode is SeedMode.RANDOM and start is not None:
        raise InvalidInput("--seed is for --seed-mode fixed and increment: random ones do not begin anywhere.")
    if mode is None and start is None:
        return None
    return {"mode": mode or SeedMode.INCREMENT, "start": start or 0}


@asynccontextmanager
async def _desk(url: str | None) -> AsyncIterator[Client]:
    """A client of the ComfyRelay that runs; where none does, one that runs as long as it is needed."""
    from comfyrelay.client import Client
    from comfyrelay.settings import load_settings

    settings = load_settings()
    token = os.environ.get("COMFYRELAY_TOKEN")
    async with Client(address(url, settings), token=token) as client:
        try:
            await client.desk()
        except NotFound:
            # a server, not a desk
            yield client
            return
        except ControlPlaneUnreachable:
            if url is not None:
                raise
        else:
            yield client
            return
        require("desk")
        from comfyrelay.desk.desk import Desk
        from comfyrelay.desk.scripts.config import load_script_table
        from comfyrelay.desk.settings import load_desk_settings
        from comfyrelay.worker.console import WorkerConsole

        # what is printed on standard output is the answer
        with WorkerConsole(level="warning", is_for_machines=False, shows_jobs=False):
            err.print("ComfyRelay is not running here, so it is started for this job.", highlight=False, style="dim")
            async with Desk(settings=settings, desk=load_desk_settings(), script=load_script_table()).open():
                yield client


async def _show_command(client: Client, target: SubmitTarget, payload: Mapping[str, Any]) -> None:
    """Of the user's own script, what will be run, before it is."""
    slug = target.named.get("workflow_slug")
    if slug is None or slug != await client.script_workflow():
        return
    known = {each.key: each.default_value for each in target.properties}
    given = {**known, "positive": "", "input_subdir": "", **payload}
    values = {key: value for key, value in given.items() if value is not None}
    err.print(f"$ {await client.script_command(values)}", highlight=False, markup=False, soft_wrap=True)


async def _preset(client: Client, name: str, target: SubmitTarget) -> dict[str, Any]:
    from comfyrelay.domain.properties import apply_preset

    applied = apply_preset((await client.preset(name)).values, target.as_properties())
    if applied.remark:
        err.print(applied.remark, highlight=False, markup=False, soft_wrap=True)
    return dict(applied.values)


async def _follow(client: Client, job_id: str, *, is_quiet: bool, shown: str | None = None) -> None:
    """Until the job has ended, with a bar that shows how far it is; Ctrl-C cancels it."""
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as ProgressDisplay

    from comfyrelay.client import render

    columns = (
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    began: datetime | None = None
    with ProgressDisplay(*columns, console=err, transient=True, disable=is_quiet or not sys.stderr.isatty()) as bar:
        task = bar.add_task("waiting", total=1.0)
        explaining = asyncio.create_task(_show_why_it_waits(client, job_id, shown, is_quiet=is_quiet))
        try:
            async for event in client.events(job_id):
                if event.type == "progress":
                    explaining.cancel()
                    began = began or utc_now()
                    progress = Progress.read(event.data)
                    text = render.how_far(progress, began, utc_now()) or "running"
                    bar.update(task, completed=progress.part or 0.0, description=text)
        except asyncio.CancelledError:
            try:
                said = (await client.cancel("job", job_id)).message
                err.print(f"Job {job_id}: {said}", highlight=False, markup=False, soft_wrap=True)
            except ComfyRelayError as error:
                kept = f"It continues without you: `comfyrelay show {job_id}`."
                err.print(f"Job {job_id} could not be canceled: {error} {kept}", highlight=False, soft_wrap=True)
            raise
        finally:
            explaining.cancel()


async def _show_what_is_missing(client: Client, job_id: str) -> str | None:
    """At once: whoever added it anyway may leave it to wait, and would not see what for."""
    waiting = (await client.job(job_id)).waiting
    if waiting is not None and waiting.reason == "missing":
        kept = f"Ctrl-C cancels it; `comfyrelay show {job_id}` says how far it is."
        err.print(f"{waiting.text} {kept}", highlight=False, markup=False, soft_wrap=True)
        return waiting.reason
    return None


async def _show_why_it_waits(client: Client, job_id: str, shown: str | None, *, is_quiet: bool) -> None:
    """Once for each reason, so that nobody looks at a bar that does not move and wonders."""
    while not is_quiet:
        await asyncio.sleep(WAITING_SECONDS)
        # whoever follows the events says what is wrong
        with suppress(ComfyRelayError):
            waiting = (await client.job(job_id)).waiting
            if waiting is not None and waiting.reason != shown:
                shown = waiting.reason
                err.print(waiting.text, highlight=False, markup=False, soft_wrap=True)
