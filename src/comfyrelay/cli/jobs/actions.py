"""`comfyrelay cancel`, `pause`, `resume`, `retry`, `rerun`, `delete` and `move`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comfyrelay.cli.jobs import completion
from comfyrelay.cli.jobs.connection import Url, connected, find_job_or_batch
from comfyrelay.cli.options import Json
from comfyrelay.cli.output import print_json, print_line, print_note
from comfyrelay.domain.queue.ordering import MoveTo
from comfyrelay.errors import ComfyRelayError, InvalidInput
from comfyrelay.text import counted

if TYPE_CHECKING:
    from comfyrelay.client import ActionResult, Client, Found
    from comfyrelay.protocol.jobs import QueueCounts

REFUSED = 2
NewSeed = Annotated[bool, typer.Option("--new-seed", help="Draw new seeds.")]
Ids = Annotated[
    list[str],
    typer.Argument(
        metavar="JOB",
        help="Ids of jobs or batches, or the beginnings or ends of ids.",
        autocompletion=completion.ids,
    ),
]

OptionalIds = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="JOB",
        help="Ids of jobs or batches, or the beginnings or ends of ids. Default: the whole queue.",
        autocompletion=completion.ids,
    ),
]


def cancel(job: Ids, url: Url = None, as_json: Json = False) -> None:
    """Cancel jobs or batches.

    Waiting jobs will not run, and running jobs are stopped. `retry` runs them again.
    """
    _apply(job, url, lambda client, found: client.cancel(found.kind, found.id), as_json=as_json)


def pause(
    job: OptionalIds = None,
    now: Annotated[
        bool, typer.Option("--now", help="Interrupt and requeue running jobs. Default: they finish.")
    ] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Pause the queue, or only some jobs or batches, until they are resumed.

    A paused queue starts no jobs, including jobs that are added later.
    """
    if job:
        _apply(job, url, lambda client, found: client.pause(found.kind, found.id, now=now), as_json=as_json)
    else:
        _apply_to_queue(url, lambda client: client.pause_queue(now=now), as_json=as_json)


def resume(job: OptionalIds = None, url: Url = None, as_json: Json = False) -> None:
    """Resume the queue, or paused jobs or batches.

    Jobs and batches that were paused individually stay paused when the queue is resumed.
    """
    if job:
        _apply(job, url, lambda client, found: client.resume(found.kind, found.id), as_json=as_json)
    else:
        _apply_to_queue(url, lambda client: client.resume_queue(), as_json=as_json)


def retry(
    job: Ids,
    new_seed: NewSeed = False,
    all_items: Annotated[bool, typer.Option("--all", help="Run all items of a batch again as a new batch.")] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Retry failed or canceled jobs, or the failed items of batches, as new jobs."""

    async def retry_one(client: Client, found: Found) -> ActionResult[Any]:
        if not all_items:
            return await client.retry(found.kind, found.id, new_seeds=new_seed)
        if found.kind == "job":
            raise InvalidInput("--all is for batches.")
        return await client.rerun_batch(found.id, new_seeds=new_seed)

    _apply(job, url, retry_one, as_json=as_json)


def rerun(job: Ids, new_seed: NewSeed = False, url: Url = None, as_json: Json = False) -> None:
    """Run ended jobs or batches again, even completed ones, with the same values as new jobs or batches."""

    async def rerun_one(client: Client, found: Found) -> ActionResult[Any]:
        run = client.rerun_job if found.kind == "job" else client.rerun_batch
        return await run(found.id, new_seeds=new_seed)

    _apply(job, url, rerun_one, as_json=as_json)


def delete(
    job: Ids,
    keep_files: Annotated[bool, typer.Option("--keep-files", help="Keep the files in the output folder.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Delete ended jobs or batches with their logs, outputs and files in the desk's output folder.

    Inputs, workflows, and files that a script saved in other folders are kept.
    """

    async def list_deleted(client: Client) -> list[str]:
        lines: list[str] = []
        for found in [await find_job_or_batch(client, text) for text in job]:
            lines.append(f"{found.kind} {found.id} with its log and its output")
            is_job = found.kind == "job"
            ids = [found.id] if is_job else [item.id async for item in client.jobs(batch_id=found.id)]
            for job_id in [] if keep_files else ids:
                about = await client.about(job_id)
                lines += [f"  {path}" for path in about.deleted_with_it] if about is not None else []
        return lines

    if not yes:
        for line in connected(url, list_deleted):
            print_note(line)
        typer.confirm("Delete this? It cannot be undone.", abort=True, err=True)

    async def delete_one(client: Client, found: Found) -> ActionResult[Any]:
        if found.kind == "job":
            return await client.delete_job(found.id, keep_files=keep_files)
        done = await client.delete_batch(found.id, keep_files=keep_files)
        if done.data.refused:
            raise InvalidInput(f"{counted(done.data.changed, 'job')} deleted. {done.data.refused[0].detail}")
        files = f", with {counted(done.data.files, 'file')}" if done.data.files else ""
        remaining = f" Not deleted: {'; '.join(done.data.not_deleted)}." if done.data.not_deleted else ""
        return replace(done, message=f"{counted(done.data.changed, 'job')} deleted{files}.{remaining}")

    _apply(job, url, delete_one, as_json=as_json)


def move(
    job: Ids,
    to: Annotated[
        MoveTo | None, typer.Option(help="Move them to an end of the queue, or one place up or down.")
    ] = None,
    before: Annotated[str | None, typer.Option(help="Move them before this job or batch.")] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Move waiting jobs or batches in the queue."""
    # To the top, down or before another job, the last one moves first, so that the order is kept.
    ordered = job if to in (MoveTo.UP, MoveTo.BOTTOM, None) else job[::-1]
    if (to is None) == (before is None):
        raise InvalidInput("Give either --to or --before.")

    async def move_one(client: Client, found: Found) -> ActionResult[Any]:
        next_id = (await find_job_or_batch(client, before)).id if before is not None else None
        return await client.move(found.kind, found.id, to, before=next_id)

    _apply(ordered, url, move_one, as_json=as_json)


def _apply_to_queue(
    url: str | None, action: Callable[[Client], Awaitable[ActionResult[QueueCounts]]], *, as_json: bool
) -> None:
    done = connected(url, action)
    if as_json:
        print_json(done.data)
    else:
        print_line(done.message)


def _apply(
    ids: list[str], url: str | None, action: Callable[[Client, Found], Awaitable[ActionResult[Any]]], *, as_json: bool
) -> None:
    """Apply the action to each job or batch, and continue after a refusal."""

    async def work(client: Client) -> tuple[list[Any], bool]:
        changed, has_refusal = [], False
        # Find all of them first: after a typo, nothing must change.
        for found in [await find_job_or_batch(client, text) for text in ids]:
            try:
                done = await action(client, found)
            except ComfyRelayError as error:
                has_refusal = True
                print_note(f"{found.kind} {found.id[-8:]}: {error}", style="red")
                continue
            changed.append(done.data)
            if not as_json:
                print_line(f"{found.kind} {getattr(done.data, 'id', found.id)}: {done.message}")
        return changed, has_refusal

    changed, has_refusal = connected(url, work)
    if as_json:
        print_json(changed)
    if has_refusal:
        raise typer.Exit(REFUSED)
