"""`comfyrelay presets`, `workflows` and `notify`."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from comfyrelay.cli import completion
from comfyrelay.cli.connection import APPRISE, Json, Url, connected, print_result
from comfyrelay.errors import InvalidInput
from comfyrelay.extras import require

if TYPE_CHECKING:
    from comfyrelay.client import Client, Done

FAILED = 1

presets_app = typer.Typer(invoke_without_command=True)
workflows_app = typer.Typer(invoke_without_command=True)
notify_app = typer.Typer(no_args_is_help=True, help="Test the notifications of jobs that end.")
out = Console()


@presets_app.callback()
def presets(context: typer.Context, url: Url = None, as_json: Json = False) -> None:
    """List presets, which are named sets of values; add or remove one."""
    if context.invoked_subcommand is not None:
        return
    from comfyrelay.client.render import preset_table

    found = connected(url, lambda client: client.presets())
    print_result(found, preset_table(found) if found else "No presets.", as_json=as_json)


@presets_app.command("add")
def presets_add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name that no other preset has.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A value. Repeat for more.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="A file with values as a JSON object.")] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Save values as a preset."""
    values = {**(_values_in(file) if file else {}), **dict(_value(each) for each in set_ or ())}
    if not values:
        raise InvalidInput("A preset needs values: give them with --set or --file.")
    made = connected(url, lambda client: client.create_preset(name, values))
    print_result(made, f"Saved preset {name} with {len(values)} values.", as_json=as_json)


@presets_app.command("remove")
def presets_remove(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The name of the preset.", autocompletion=completion.presets)
    ],
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
        help="The name of a workflow; of several with one name, the slug.",
        autocompletion=completion.workflows,
    ),
]


@workflows_app.callback()
def workflows(context: typer.Context, url: Url = None, as_json: Json = False) -> None:
    """List your own workflows, newest first; add, rename, replace or remove one. `run` with a file adds one, too."""
    if context.invoked_subcommand is not None:
        return
    from comfyrelay.client.render import workflow_table

    found = [each for each in connected(url, lambda client: client.workflows()) if each.is_active]
    none = "You have no workflows yet: `comfyrelay run FILE` makes one from a file."
    print_result(found, workflow_table(found) if found else none, as_json=as_json)


@workflows_app.command("add")
def workflows_add(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A workflow saved in ComfyUI, or a file that it made.")],
    name: Annotated[str | None, typer.Option(help="Its name. Default: the name of the file.")] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Add it although no worker has its nodes: it waits until one does.")
    ] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Add a workflow from a file, without running it."""
    from comfyrelay.cli.run_arguments import errors_as_options
    from comfyrelay.comfyui.editor.loading import load_workflow

    graph = load_workflow(file)
    with errors_as_options():
        added = connected(url, lambda client: client.add_graph(graph, name=name or file.stem, wait_for_missing=anyway))
    print_result(added.workflow, f"workflow {added.workflow.slug}: {added.message}", as_json=as_json)


@workflows_app.command("rename")
def workflows_rename(
    workflow: WorkflowName,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new name.")],
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Rename a workflow. Its slug stays."""
    _with_workflow(workflow, url, lambda client, slug: client.rename_workflow(slug, name), as_json=as_json)


@workflows_app.command("replace")
def workflows_replace(
    workflow: WorkflowName,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A workflow saved in ComfyUI, or a file that it made.")],
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Replace a workflow with a newer version. Submitted jobs keep theirs."""
    from comfyrelay.comfyui.editor.loading import load_workflow

    graph = load_workflow(file)
    _with_workflow(workflow, url, lambda client, slug: client.replace_workflow(slug, graph), as_json=as_json)


@workflows_app.command("remove")
def workflows_remove(workflow: WorkflowName, url: Url = None, as_json: Json = False) -> None:
    """Remove a workflow. Its jobs and outputs stay."""
    _with_workflow(workflow, url, lambda client, slug: client.remove_workflow(slug), as_json=as_json)


def _with_workflow(
    name: str, url: str | None, verb: Callable[[Client, str], Awaitable[Done[Any]]], *, as_json: bool
) -> None:
    from comfyrelay.cli.run_arguments import workflow_named

    async def work(client: Client) -> tuple[str, Done[Any]]:
        slug = (await workflow_named(client, name)).slug
        return slug, await verb(client, slug)

    slug, done = connected(url, work)
    print_result(done.data, f"workflow {slug}: {done.message}", as_json=as_json)


@notify_app.command("test")
def notify_test(
    url: Annotated[list[str], typer.Argument(metavar="URL", help=f"Where to: {APPRISE}")],
    as_json: Json = False,
) -> None:
    """Send a notification to each URL, and print failures; exit code 1 if there are any."""
    require("desk")
    from comfyrelay.desk.notifications.notifier import Notifier, without_secrets

    sending = Notifier().send("ComfyRelay", "If you can read this, notifications arrive here.", url)
    failures = asyncio.run(sending)
    if as_json:
        data = {
            "sent": len(url) - len(failures),
            "failures": [{"url": failure.url, "why": failure.why} for failure in failures],
        }
        out.print_json(data=data)
    else:
        why = {failure.url_given: failure.why for failure in failures}
        for each in url:
            verdict = f"failed: {why[each]}" if each in why else "sent"
            out.print(f"{without_secrets(each)}  {verdict}", highlight=False, markup=False, soft_wrap=True)
    if failures:
        raise typer.Exit(FAILED)


def _value(text: str) -> tuple[str, Any]:
    """`steps=20` is a number, `prompt=a cat` a text: valid JSON is parsed."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise InvalidInput(f"Write KEY=VALUE, not {text!r}.")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _values_in(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(sys.stdin.read() if str(file) == "-" else file.read_text("utf-8"))
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}.") from None
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise InvalidInput(f"{file} does not hold a JSON object.")
    return values
