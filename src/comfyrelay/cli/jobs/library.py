"""`comfyrelay presets`, `workflows` and `notify`."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comfyrelay.cli.jobs import completion
from comfyrelay.cli.jobs.connection import Url, connected
from comfyrelay.cli.options import APPRISE, Json, parse_assignment
from comfyrelay.cli.output import print_json, print_line, print_result
from comfyrelay.errors import Conflict, InvalidInput, WorkflowNameTaken
from comfyrelay.extras import require

if TYPE_CHECKING:
    from comfyrelay.client import ActionResult, Client, OwnWorkflowVersion

NOT_SENT = 1
_NO_REPLACE_ANYWAY = (
    "Give --replace or --anyway, but not both: a workflow is replaced only if a worker has the nodes of the new one. "
    "Install them first, or add it as another workflow with --keep-both --anyway."
)
presets_app = typer.Typer(invoke_without_command=True)
workflows_app = typer.Typer(invoke_without_command=True)
notify_app = typer.Typer(no_args_is_help=True, help="Test the notifications about ended jobs.")


@presets_app.callback()
def presets(context: typer.Context, url: Url = None, as_json: Json = False) -> None:
    """List your presets, which are named sets of values, or add or remove one."""
    if context.invoked_subcommand is not None:
        return
    from comfyrelay.client.render import preset_table

    found = connected(url, lambda client: client.presets())
    print_result(found, preset_table(found) if found else "No presets.", as_json=as_json)


@presets_app.command("add")
def presets_add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A unique name.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A value of the preset. Repeatable.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="File with the values as a JSON object; - for standard input.")
    ] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Save values as a preset."""
    values = {**(_read_values(file) if file else {}), **dict(parse_assignment(text) for text in set_ or ())}
    if not values:
        raise InvalidInput("A preset needs values: give them with --set or --file.")
    preset = connected(url, lambda client: client.create_preset(name, values))
    print_result(preset, f"Saved preset {name} with {len(values)} values.", as_json=as_json)


@presets_app.command("remove")
def presets_remove(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the preset.", autocompletion=completion.presets)],
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Remove a preset."""

    async def work(client: Client) -> str:
        preset = await client.preset(name)
        await client.remove_preset(preset.id)
        return preset.id

    id_ = connected(url, work)
    print_result({"id": id_, "name": name}, f"Removed preset {name}.", as_json=as_json)


WorkflowName = Annotated[
    str,
    typer.Argument(
        metavar="WORKFLOW",
        help="Name of a workflow, or its slug if several have the name.",
        autocompletion=completion.workflows,
    ),
]
WorkflowFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="A workflow saved in ComfyUI, or a file that ComfyUI made.")
]


@workflows_app.callback()
def workflows(context: typer.Context, url: Url = None, as_json: Json = False) -> None:
    """List your own workflows, newest first, or add, rename, replace or remove one.

    `run` with a file needs no stored workflow: it removes the workflow of the file after a completed job.
    """
    if context.invoked_subcommand is not None:
        return
    from comfyrelay.client.render import workflow_table

    found = [workflow for workflow in connected(url, lambda client: client.workflows()) if workflow.is_active]
    hint = "You have no workflows yet. `comfyrelay run FILE` adds one from a file."
    print_result(found, workflow_table(found) if found else hint, as_json=as_json)


@workflows_app.command("add")
def workflows_add(
    file: WorkflowFile,
    name: Annotated[str | None, typer.Option(help="Name of the workflow. Default: the name of the file.")] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Add the workflow although no worker has its nodes. It waits for one.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace your workflow with this name. Keeps its jobs and presets.")
    ] = False,
    keep_both: Annotated[
        bool, typer.Option("--keep-both", help="If you have a workflow with this name, number the new one.")
    ] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Add a workflow from a file, without running it.

    If you have a workflow with this name and another graph, choose --replace or --keep-both.
    """
    from comfyrelay.cli.jobs.targets import advise_anyway
    from comfyrelay.comfyui.editor.loading import load_workflow

    if replace and keep_both:
        raise InvalidInput("Give --replace or --keep-both, but not both.")
    if replace and anyway:
        raise InvalidInput(_NO_REPLACE_ANYWAY)
    graph = load_workflow(file)

    async def work(client: Client) -> ActionResult[Any]:
        try:
            return await client.add_graph(
                graph,
                name=name or file.stem,
                wait_for_missing=anyway,
                same_name="number" if keep_both else "refuse",
            )
        except WorkflowNameTaken as error:
            if not replace:
                raise Conflict(
                    "You have a workflow with this name and another graph. Add --replace (keeps its jobs and presets) "
                    "or --keep-both."
                ) from None
            return await client.replace_workflow(error.workflow_slug, graph)

    with advise_anyway():
        added = connected(url, work)
    print_result(added.data, f"workflow {added.data.slug}: {added.message}", as_json=as_json)


@workflows_app.command("rename")
def workflows_rename(
    workflow: WorkflowName,
    name: Annotated[str, typer.Argument(metavar="NAME", help="New name.")],
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Rename a workflow. Its slug does not change."""
    _with_workflow(workflow, url, lambda client, slug: client.rename_workflow(slug, name), as_json=as_json)


@workflows_app.command("replace")
def workflows_replace(
    workflow: WorkflowName,
    file: WorkflowFile,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Replace a workflow with a newer version. Keeps its jobs and presets. Submitted jobs keep their graph."""
    from comfyrelay.comfyui.editor.loading import load_workflow

    graph = load_workflow(file)
    _with_workflow(workflow, url, lambda client, slug: client.replace_workflow(slug, graph), as_json=as_json)


@workflows_app.command("versions")
def workflows_versions(workflow: WorkflowName, url: Url = None, as_json: Json = False) -> None:
    """List the versions of a workflow, newest first, with their changes."""
    from datetime import UTC, datetime

    from comfyrelay.cli.jobs.targets import workflow_named
    from comfyrelay.client.render import version_table

    async def work(client: Client) -> list[OwnWorkflowVersion]:
        return await client.workflow_versions((await workflow_named(client, workflow)).slug)

    found = connected(url, work)
    hint = "No version can be read yet."
    print_result(found, version_table(found, datetime.now(UTC)) if found else hint, as_json=as_json)


@workflows_app.command("bring-back")
def workflows_bring_back(
    workflow: WorkflowName,
    version: Annotated[int, typer.Argument(metavar="VERSION", min=1, help="Number of the version.")],
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Restore an earlier version of a workflow. Submitted jobs keep their graph."""
    _with_workflow(workflow, url, lambda client, slug: client.bring_back_workflow(slug, version), as_json=as_json)


@workflows_app.command("remove")
def workflows_remove(workflow: WorkflowName, url: Url = None, as_json: Json = False) -> None:
    """Remove a workflow. Its jobs and outputs are kept."""
    _with_workflow(workflow, url, lambda client, slug: client.remove_workflow(slug), as_json=as_json)


def _with_workflow(
    name: str, url: str | None, action: Callable[[Client, str], Awaitable[ActionResult[Any]]], *, as_json: bool
) -> None:
    from comfyrelay.cli.jobs.targets import workflow_named

    async def work(client: Client) -> tuple[str, ActionResult[Any]]:
        slug = (await workflow_named(client, name)).slug
        return slug, await action(client, slug)

    slug, done = connected(url, work)
    print_result(done.data, f"workflow {slug}: {done.message}", as_json=as_json)


@notify_app.command("test")
def notify_test(
    url: Annotated[list[str], typer.Argument(metavar="URL", help=f"An {APPRISE}")],
    as_json: Json = False,
) -> None:
    """Send a test notification to each URL, and print failures.

    The exit code is 1 if a notification was not sent.
    """
    require("desk")
    from comfyrelay.desk.notifications.notifier import Notifier, without_secrets

    sending = Notifier().send("ComfyRelay", "If you can read this, notifications arrive here.", url)
    failures = asyncio.run(sending)
    if as_json:
        data = {
            "sent": len(url) - len(failures),
            "failures": [{"url": failure.url, "why": failure.why} for failure in failures],
        }
        print_json(data)
    else:
        reasons = {failure.url_given: failure.why for failure in failures}
        for recipient in url:
            verdict = f"failed: {reasons[recipient]}" if recipient in reasons else "sent"
            print_line(f"{without_secrets(recipient)}  {verdict}")
    if failures:
        raise typer.Exit(NOT_SENT)


def _read_values(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(sys.stdin.read() if str(file) == "-" else file.read_text("utf-8"))
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}.") from None
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise InvalidInput(f"{file} does not contain a JSON object.")
    return values
