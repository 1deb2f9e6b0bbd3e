"""Options that `run` and `batch add` share, and helpers for both."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from comfyrelay.cli import completion

if TYPE_CHECKING:
    from comfyrelay.cli.run_arguments import SubmitTarget
    from comfyrelay.client import Client

err = Console(stderr=True)

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
        help="PROPERTY=VALUE, or NODE.INPUT=VALUE of a graph (node by id or title). For a further image, video or "
        "audio file the VALUE is its path. Repeat for more.",
    ),
]
Anyway = Annotated[
    bool,
    typer.Option(
        "--anyway",
        help="Add it although no worker meets its requirements: it waits until one does. A file of ComfyUI's editor "
        "with missing nodes cannot become a job yet: `comfyrelay workflows add FILE --anyway` stores it, and it can "
        "be run once a worker has the nodes.",
    ),
]
Reuse = Annotated[
    bool,
    typer.Option(
        "--reuse",
        help="If an equal job of yours has completed, copy its output: at once, and for free. Set a seed, or no two "
        "jobs are equal.",
    ),
]
MaxWait = Annotated[
    int | None,
    typer.Option(
        min=0, max=31_536_000, metavar="SECONDS", help="How long it may wait before it may run where it costs more."
    ),
]


def original_seeds(what: str, target: SubmitTarget) -> dict[str, Any]:
    """The seeds of a file that ComfyUI made, so that it is made again; a workflow gets new ones."""
    from comfyrelay.comfyui.editor.loading import may_hold_workflow

    path = Path(what)
    is_made = may_hold_workflow(path) and path.suffix.lower() != ".json"
    return {
        property_.key: property_.default_value
        for property_ in target.properties
        if is_made and property_.role == "seed"
    }


def print_remarks(target: SubmitTarget) -> None:
    for remark in target.remarks:
        err.print(remark, highlight=False, markup=False, soft_wrap=True)


async def preset_values(client: Client, name: str | None, target: SubmitTarget) -> dict[str, Any]:
    from comfyrelay.domain.properties import apply_preset

    if name is None:
        return {}
    applied = apply_preset((await client.preset(name)).values, target.as_properties())
    if applied.remark:
        err.print(applied.remark, highlight=False, markup=False, soft_wrap=True)
    return dict(applied.values)
