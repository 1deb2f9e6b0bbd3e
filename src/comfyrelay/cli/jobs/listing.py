"""`comfyrelay jobs`, `batches`, `show`, `logs` and `top`."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from comfyrelay.cli.jobs import completion
from comfyrelay.cli.jobs.connection import Url, connected, find_job_or_batch, note_pause, take
from comfyrelay.cli.options import Json
from comfyrelay.cli.output import out, print_json, print_note, print_result
from comfyrelay.clock import utc_now
from comfyrelay.domain.queue.states import JobStatus

if TYPE_CHECKING:
    from comfyrelay.client import Batch, Client, Job

NOT_COMPLETED = 1
MAX_FAILED_SHOWN = 10
# State names of the page, and the statuses of the API.
STATUSES = {
    "waiting": JobStatus.QUEUED,
    "pending": JobStatus.QUEUED,
    "running": JobStatus.PROCESSING,
    "done": JobStatus.COMPLETED,
    "succeeded": JobStatus.COMPLETED,
    **{str(status): status for status in JobStatus},
}


def _parse_status(name: str) -> JobStatus:
    try:
        return STATUSES[name.strip().lower()]
    except KeyError:
        known = "waiting, running, done, failed, canceled or paused"
        raise typer.BadParameter(f"{name!r} is not a state. Write {known}.") from None


def _complete_status(incomplete: str) -> list[str]:
    return [name for name in STATUSES if name.startswith(incomplete)]


def jobs(
    status: Annotated[
        JobStatus | None,
        typer.Option(
            parser=_parse_status,
            metavar="STATUS",
            autocompletion=_complete_status,
            help="Only jobs with this status: waiting, running, done, failed, canceled or paused.",
        ),
    ] = None,
    search: Annotated[
        str | None, typer.Option(help="Only jobs with this text in their label, batch label, prompt, error or id.")
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(
            help="Only jobs of this batch: its id, or the start or end of the id.",
            autocompletion=completion.batches,
        ),
    ] = None,
    limit: Annotated[int, typer.Option(help="Maximum number.", min=1)] = 20,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """List jobs, newest first."""
    from comfyrelay.client import render
    from comfyrelay.client.labels import JobLabels

    async def work(client: Client) -> tuple[list[Job], dict[str, str]]:
        batch_id = (await find_job_or_batch(client, batch, kind="batch")).id if batch else None
        await note_pause(client)
        found = await take(client.jobs(status=status, batch_id=batch_id, search=search, page=limit), limit)
        return found, {} if as_json else await JobLabels(client).of(found)

    found, labels = connected(url, work)
    if as_json:
        print_json(found)
    else:
        out.print(render.job_table(found, labels, utc_now()) if found else "No jobs.")


def batches(
    limit: Annotated[int, typer.Option(help="Maximum number.", min=1)] = 20,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """List batches, newest first, with their progress, outcomes and expected remaining time."""
    from comfyrelay.client import render

    async def work(client: Client) -> list[Batch]:
        await note_pause(client)
        return await take(client.batches(), limit)

    found = connected(url, work)
    print_result(found, render.batch_table(found) if found else "No batches.", as_json=as_json)


def show(
    job: Annotated[
        str,
        typer.Argument(
            metavar="JOB",
            help="Id of a job or batch, or the beginning or end of the id.",
            autocompletion=completion.ids,
        ),
    ],
    all_inputs: Annotated[bool, typer.Option("--all", help="Show all inputs, including unchanged ones.")] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Show a job or batch with its progress, wait reason, errors and files."""
    from comfyrelay.client import render
    from comfyrelay.client.labels import JobLabels

    async def work(client: Client) -> None:
        found = await find_job_or_batch(client, job)
        if found.kind == "batch":
            batch = await client.batch(found.id)
            failed = [] if as_json else await _failed(client, batch)
            print_result(batch, render.batch_details(batch, failed), as_json=as_json)
        else:
            record, about = await client.job(found.id), await client.about(found.id)
            label = (await JobLabels(client).of([record]))[found.id]
            details = render.job_details(record, label, about, utc_now(), is_whole=all_inputs)
            print_result({**record.model_dump(mode="json"), "about": about}, details, as_json=as_json)
            for line in [] if as_json else render.output_lines(record, about):
                typer.echo(line)

    connected(url, work)


async def _failed(client: Client, batch: Batch) -> list[Job]:
    """Return the newest failed items that were not retried, to match the counts."""
    wanted = min(batch.counts.get(JobStatus.FAILED, 0), MAX_FAILED_SHOWN)
    retried: set[str | None] = set()
    found: list[Job] = []
    if not wanted:
        return found
    async for job in client.jobs(batch_id=batch.id):
        # Jobs are listed newest first, and the first items are as old as the batch.
        if job.created_at <= batch.created_at:
            break
        retried.add(job.retry_of)
    async for job in client.jobs(status="failed", batch_id=batch.id):
        if job.id not in retried:
            found.append(job)
        if len(found) == wanted:
            break
    return found


def logs(
    job: Annotated[
        str,
        typer.Argument(
            metavar="JOB", help="Id of a job, or the beginning or end of the id.", autocompletion=completion.jobs
        ),
    ],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the log until the job ends.")] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Print the log of a job.

    With --follow, the exit code is 1 if the job did not complete.
    """
    from comfyrelay.text import printable

    async def work(client: Client) -> str:
        found = await find_job_or_batch(client, job, kind="job")
        async for log in client.logs(found.id, is_followed=follow):
            typer.echo(json.dumps(log.model_dump(mode="json")) if as_json else printable(log.line))
        return (await client.job(found.id)).status

    status = connected(url, work)
    if follow and status != JobStatus.COMPLETED:
        print_note(f"The job is {status}.")
        raise typer.Exit(NOT_COMPLETED)


def top(
    once: Annotated[bool, typer.Option("--once", help="Print the queue once and exit.")] = False,
    every: Annotated[float, typer.Option(help="Seconds between updates.", min=0.1)] = 1.0,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Watch the queue in the terminal, and pause, cancel, retry or move jobs, until q or Ctrl-C.

    Keys: j and k select a row; p pauses or resumes it, x cancels it, r retries it; t, u and d move it to the top, up
    and down.
    """
    from comfyrelay.client.labels import JobLabels
    from comfyrelay.client.top import render_view, take_snapshot, watch

    async def work(client: Client) -> None:
        if once or as_json or not out.is_terminal:
            snapshot = await take_snapshot(client, JobLabels(client))
            print_result(snapshot, render_view(snapshot, utc_now()), as_json=as_json)
        else:
            await watch(client, out, every_seconds=every)

    with suppress(KeyboardInterrupt):
        connected(url, work)
