"""Commands for jobs, over HTTP, on this or another machine."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console

from comfyrelay.cli import completion
from comfyrelay.cli.connection import Json, Url, connected, print_json, print_result
from comfyrelay.cli.library import notify_app, presets_app, workflows_app
from comfyrelay.clock import utc_now
from comfyrelay.domain.queue.ordering import MoveTo
from comfyrelay.domain.queue.states import JobStatus
from comfyrelay.errors import ComfyRelayError, InvalidInput

if TYPE_CHECKING:
    from comfyrelay.client import Batch, Client, Done, Found, Job

T = TypeVar("T")
FOUND = 1
CANNOT = 2
FAILED_SHOWN = 10
JOBS = "Jobs, here or elsewhere"

jobs_app = typer.Typer()
jobs_app.add_typer(presets_app, name="presets", rich_help_panel=JOBS)
jobs_app.add_typer(workflows_app, name="workflows", rich_help_panel=JOBS)
jobs_app.add_typer(notify_app, name="notify", rich_help_panel=JOBS)

NewSeed = Annotated[bool, typer.Option("--new-seed", help="Draw new seeds.")]
Id = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="The id of a job, or its beginning or end.",
        autocompletion=completion.jobs,
    ),
]
Ids = Annotated[
    list[str],
    typer.Argument(
        metavar="JOB",
        help="Ids of jobs or batches, or their beginnings or ends.",
        autocompletion=completion.ids,
    ),
]
out = Console()
err = Console(stderr=True)


# The names on the page for the statuses of the API.
WORDS = {
    "waiting": JobStatus.QUEUED,
    "pending": JobStatus.QUEUED,
    "running": JobStatus.PROCESSING,
    "done": JobStatus.COMPLETED,
    "succeeded": JobStatus.COMPLETED,
    **{str(each): each for each in JobStatus},
}


def _status(word: str) -> JobStatus:
    try:
        return WORDS[word.strip().lower()]
    except KeyError:
        known = "waiting, running, done, failed, canceled or paused"
        raise typer.BadParameter(f"{word!r} is not a state. Write {known}.") from None


def status_words(incomplete: str) -> list[str]:
    return [each for each in WORDS if each.startswith(incomplete)]


@jobs_app.command(rich_help_panel=JOBS)
def jobs(
    status: Annotated[
        JobStatus | None,
        typer.Option(
            parser=_status,
            metavar="STATUS",
            autocompletion=status_words,
            help="Only waiting, running, done, failed, canceled or paused jobs, as on the page. The API statuses "
            "(queued, processing, completed) work, too.",
        ),
    ] = None,
    search: Annotated[
        str | None, typer.Option(help="Search in the label, the label of the batch, the prompt, the error and the id.")
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(help="Only jobs of this batch: its id, or part of it.", autocompletion=completion.batches),
    ] = None,
    limit: Annotated[int, typer.Option(help="At most this many.", min=1)] = 20,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """List jobs, newest first."""
    from comfyrelay.client import render
    from comfyrelay.client.labels import Labels

    async def work(client: Client) -> tuple[list[Job], dict[str, str]]:
        labels = Labels(client)
        batch_id = (await _found(client, batch, kind="batch")).id if batch else None
        found: list[Job] = []
        async for job in client.jobs(status=status, batch_id=batch_id, search=search, page=limit):
            found.append(job)
            if len(found) == limit:
                break
        return found, {} if as_json else await labels.of(found)

    found, labels = connected(url, work)
    if as_json:
        print_json(found)
    elif found:
        out.print(render.job_table(found, labels, utc_now()))
    else:
        out.print("No jobs.", highlight=False)


@jobs_app.command(rich_help_panel=JOBS)
def batches(
    limit: Annotated[int, typer.Option(help="At most this many.", min=1)] = 20,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """List batches, newest first: progress, items by outcome, and the expected remaining time."""
    from comfyrelay.client import render

    async def work(client: Client) -> list[Batch]:
        found: list[Batch] = []
        async for batch in client.batches():
            found.append(batch)
            if len(found) == limit:
                break
        return found

    found = connected(url, work)
    print_result(found, render.batch_table(found) if found else "No batches.", as_json=as_json)


@jobs_app.command(rich_help_panel=JOBS)
def show(
    job: Annotated[
        str,
        typer.Argument(
            metavar="JOB",
            help="The id of a job or batch, or its beginning or end.",
            autocompletion=completion.ids,
        ),
    ],
    whole: Annotated[bool, typer.Option("--all", help="Show all inputs, also unchanged ones.")] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Show a job or batch: progress, wait reason, errors, and files."""
    from comfyrelay.client import render
    from comfyrelay.client.labels import Labels

    async def work(client: Client) -> None:
        found = await _found(client, job)
        if found.kind == "batch":
            batch = await client.batch(found.id)
            failed = [] if as_json else await _failed(client, batch)
            print_result(batch, render.batch_details(batch, failed), as_json=as_json)
        else:
            one, about = await client.job(found.id), await client.about(found.id)
            label = (await Labels(client).of([one]))[found.id]
            details = render.job_details(one, label, about, utc_now(), is_whole=whole)
            print_result({**one.model_dump(mode="json"), "about": about}, details, as_json=as_json)
            for line in [] if as_json else render.output_lines(one, about):
                typer.echo(line)

    connected(url, work)


async def _failed(client: Client, batch: Batch) -> list[Job]:
    """The newest failed items without later retries, as in the counts."""
    wanted = min(batch.counts.get(JobStatus.FAILED, 0), FAILED_SHOWN)
    retried: set[str | None] = set()
    found: list[Job] = []
    if not wanted:
        return found
    async for job in client.jobs(batch_id=batch.id):
        # newest first; the first items are as old as the batch
        if job.created_at <= batch.created_at:
            break
        retried.add(job.retry_of)
    async for job in client.jobs(status="failed", batch_id=batch.id):
        if job.id not in retried:
            found.append(job)
        if len(found) == wanted:
            break
    return found


@jobs_app.command(rich_help_panel=JOBS)
def logs(
    job: Id,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the log until the job ends.")] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Print the log of a job; with -f until the job ends, and exit code 1 if it did not complete."""
    from comfyrelay.text import printable

    async def work(client: Client) -> str:
        found = await _found(client, job, kind="job")
        async for log in client.logs(found.id, is_followed=follow):
            typer.echo(json.dumps(log.model_dump(mode="json")) if as_json else printable(log.line))
        return (await client.job(found.id)).status

    status = connected(url, work)
    if follow and status != JobStatus.COMPLETED:
        err.print(f"The job is {status}.", highlight=False)
        raise typer.Exit(FOUND)


@jobs_app.command(rich_help_panel=JOBS)
def cancel(job: Ids, url: Url = None, as_json: Json = False) -> None:
    """Cancel jobs or batches: waiting jobs will not run, running ones are stopped. `retry` runs them again."""
    _each(job, url, lambda client, it: client.cancel(it.kind, it.id), as_json=as_json)


@jobs_app.command(rich_help_panel=JOBS)
def pause(
    job: Ids,
    now: Annotated[bool, typer.Option("--now", help="Interrupt and requeue running jobs.")] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Pause jobs or batches until they are resumed."""
    _each(job, url, lambda client, it: client.pause(it.kind, it.id, now=now), as_json=as_json)


@jobs_app.command(rich_help_panel=JOBS)
def resume(job: Ids, url: Url = None, as_json: Json = False) -> None:
    """Let paused jobs or batches run."""
    _each(job, url, lambda client, it: client.resume(it.kind, it.id), as_json=as_json)


@jobs_app.command(rich_help_panel=JOBS)
def retry(
    job: Ids,
    new_seed: NewSeed = False,
    whole: Annotated[bool, typer.Option("--all", help="All items of a batch, as a new batch.")] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Retry failed or canceled jobs, as new jobs; for a batch, its failed items."""

    async def rerun(client: Client, it: Found) -> Done[Any]:
        if not whole:
            return await client.retry(it.kind, it.id, new_seeds=new_seed)
        if it.kind == "job":
            raise InvalidInput("--all is for batches.")
        return await client.rerun(it.id, new_seeds=new_seed)

    _each(job, url, rerun, as_json=as_json)


@jobs_app.command(rich_help_panel=JOBS)
def rerun(
    job: Ids,
    new_seed: NewSeed = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Run ended jobs or batches again with the same values, as new ones; also completed ones."""

    async def again(client: Client, it: Found) -> Done[Any]:
        run = client.run_again if it.kind == "job" else client.rerun
        return await run(it.id, new_seeds=new_seed)

    _each(job, url, again, as_json=as_json)


@jobs_app.command(rich_help_panel=JOBS)
def delete(
    job: Ids,
    keep_files: Annotated[bool, typer.Option("--keep-files", help="Leave the files in the output folder.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Delete jobs or batches that have ended: their logs, their outputs, and their files in the desk's output folder.

    Files that a script saved in other folders stay, and so do inputs and workflows.
    """

    async def going(client: Client) -> list[str]:
        lines: list[str] = []
        for it in [await _found(client, each) for each in job]:
            lines.append(f"{it.kind} {it.id} with its log and its output")
            ids = [it.id] if it.kind == "job" else [entry.id async for entry in client.jobs(batch_id=it.id)]
            if not keep_files:
                lines += [f"  {path}" for job_id in ids for path in await _deleted_with(client, job_id)]
        return lines

    if not yes:
        for line in connected(url, going):
            err.print(line, highlight=False, markup=False, soft_wrap=True)
        typer.confirm("Delete this? It cannot be undone.", abort=True, err=True)

    async def gone(client: Client, it: Found) -> Done[Any]:
        if it.kind == "job":
            return await client.delete_job(it.id, keep_files=keep_files)
        done = await client.delete_batch(it.id, keep_files=keep_files)
        if done.data.refused:
            raise InvalidInput(f"{done.data.changed} jobs were deleted. {done.data.refused[0].detail}")
        files = f", with {done.data.files} files" if done.data.files else ""
        left = f" Not removed: {'; '.join(done.data.left)}." if done.data.left else ""
        return replace(done, message=f"{done.data.changed} jobs deleted{files}.{left}")

    _each(job, url, gone, as_json=as_json)


async def _deleted_with(client: Client, job_id: str) -> list[str]:
    about = await client.about(job_id)
    return about.deleted_with_it if about is not None else []


@jobs_app.command(rich_help_panel=JOBS)
def move(
    job: Ids,
    to: Annotated[MoveTo | None, typer.Option(help="Where to: one end of the queue, or one place up or down.")] = None,
    before: Annotated[str | None, typer.Option(help="The job or batch to move them before.")] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Move waiting jobs or batches in the queue, such as to its top."""
    # reversed for the top, so that they keep their order
    ordered = job if to in (MoveTo.UP, MoveTo.BOTTOM, None) else job[::-1]
    if (to is None) == (before is None):
        raise InvalidInput("Give either --to or --before.")

    async def moved(client: Client, it: Found) -> Done[Any]:
        other = (await _found(client, before)).id if before is not None else None
        return await client.move(it.kind, it.id, to, before=other)

    _each(ordered, url, moved, as_json=as_json)


@jobs_app.command(rich_help_panel=JOBS)
def top(
    once: Annotated[bool, typer.Option("--once", help="Show it once and exit.")] = False,
    every: Annotated[float, typer.Option(help="Seconds between two updates.", min=0.1)] = 1.0,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Watch the queue in the terminal, and pause, cancel, retry or move jobs, until q or Ctrl-C.

    The keys are on its first line: j and k choose a row; p pauses and resumes it, x cancels it, r retries it, and t, u
    and d move it to the top, up, down.
    """
    from comfyrelay.client.labels import Labels
    from comfyrelay.client.top import shown, take_snapshot, watch

    async def work(client: Client) -> None:
        if once or as_json or not out.is_terminal:
            seen = await take_snapshot(client, Labels(client))
            print_result(seen, shown(seen, utc_now()), as_json=as_json)
        else:
            await watch(client, out, every_seconds=every)

    try:
        connected(url, work)
    except KeyboardInterrupt:
        # Ctrl-C ends the command
        return


def _each(
    ids: list[str], url: str | None, verb: Callable[[Client, Found], Awaitable[Done[Any]]], *, as_json: bool
) -> None:
    """Run the action for each; continue after a refusal."""

    async def work(client: Client) -> tuple[list[Any], int]:
        done, refused = [], 0
        # find all first: a typo must change nothing
        for it in [await _found(client, each) for each in ids]:
            try:
                answer = await verb(client, it)
            except ComfyRelayError as error:
                refused += 1
                err.print(
                    f"{it.kind} {it.id[-8:]}: {error}", style="red", highlight=False, markup=False, soft_wrap=True
                )
                continue
            done.append(answer.data)
            if not as_json:
                id_ = getattr(answer.data, "id", it.id)
                out.print(f"{it.kind} {id_}: {answer.message}", highlight=False, markup=False, soft_wrap=True)
        return done, refused

    done, refused = connected(url, work)
    if as_json:
        print_json(done)
    if refused:
        raise typer.Exit(CANNOT)


async def _found(client: Client, text: str, *, kind: str | None = None) -> Found:
    from comfyrelay.client import find

    found = await find(client, text)
    if kind not in (None, found.kind):
        raise InvalidInput(f"{text!r} is a {found.kind}, not a {kind}.")
    return found
