"""Options that `run` and `batch add` share, and the resulting values."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comfyrelay.cli.jobs import completion
from comfyrelay.cli.output import print_note

if TYPE_CHECKING:
    from comfyrelay.cli.jobs.targets import SubmitTarget
    from comfyrelay.client import Client

What = Annotated[
    str,
    typer.Argument(
        metavar="WHAT",
        help="Name of an effect or of your workflow, or a file: a workflow saved in ComfyUI, or an image, video or "
        "audio file that ComfyUI made.",
        autocompletion=completion.runnable,
    ),
]
Values = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="PROPERTY=VALUE, or NODE.INPUT=VALUE of a graph, the node by id or title. The VALUE of an image, video or "
        "audio input is the path of a file. Repeatable.",
    ),
]
Preset = Annotated[
    str | None,
    typer.Option(help="Use the values of this preset. --set overrides them.", autocompletion=completion.presets),
]
Anyway = Annotated[
    bool,
    typer.Option(
        "--anyway",
        help="Submit although no worker meets all requirements. The job waits for one. An editor file with missing "
        "nodes is still refused: `comfyrelay workflows add FILE --anyway` stores it until a worker has the nodes.",
    ),
]
Reuse = Annotated[
    bool,
    typer.Option(
        "--reuse",
        help="If you have an equal completed job, copy its output at once and for free. Set a seed: otherwise no two "
        "jobs are equal.",
    ),
]
MaxWait = Annotated[
    int | None,
    typer.Option(
        min=0, max=31_536_000, metavar="SECONDS", help="Seconds to wait before a job may run on a more expensive fleet."
    ),
]


async def base_values(
    client: Client, what: str, target: SubmitTarget, *, preset: str | None, keeps_seeds: bool
) -> dict[str, Any]:
    """Return the values of the preset and of `--set`, and the seeds of a file that ComfyUI made, to repeat it."""
    from comfyrelay.comfyui.editor.loading import may_hold_workflow
    from comfyrelay.domain.properties import apply_preset

    values: dict[str, Any] = {}
    path = Path(what)
    if keeps_seeds and may_hold_workflow(path) and path.suffix.lower() != ".json":
        values = {property_.key: property_.default_value for property_ in target.properties if property_.role == "seed"}
    if preset is not None:
        applied = apply_preset((await client.preset(preset)).values, target.as_properties())
        if applied.remark:
            print_note(applied.remark)
        values |= applied.values
    return values | target.values
