"""`comfyrelay simulator`."""

from __future__ import annotations

import asyncio
import json
from errno import EACCES, EADDRINUSE, EADDRNOTAVAIL
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from comfyrelay.cli.ports import check_port_or_0
from comfyrelay.errors import ConfigurationError, InvalidInput
from comfyrelay.extras import require

if TYPE_CHECKING:
    from comfyrelay.simulator import Simulator

out = Console()


def simulator(
    port: Annotated[
        int, typer.Option(help="The port to listen on; 0 chooses a free one.", callback=check_port_or_0)
    ] = 8188,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    folder: Annotated[
        Path | None, typer.Option(help="The folder for input, output and temp files. Default: a temporary folder.")
    ] = None,
    checkpoint: Annotated[
        list[str] | None, typer.Option(help="The name of a checkpoint that it claims to have. Repeat for more.")
    ] = None,
    slow: Annotated[
        list[str] | None, typer.Option(help="CLASS=SECONDS: nodes of this class take this long. Repeat for more.")
    ] = None,
    preview_method: Annotated[
        Literal["none", "auto", "latent2rgb", "taesd"],
        typer.Option(help="The preview method of prompts that do not name one."),
    ] = "none",
    step_seconds: Annotated[float, typer.Option(help="The seconds of each sampler step.", min=0)] = 0.0,
    misbehave: Annotated[
        list[str] | None,
        typer.Option(help='JSON, such as {"name": "OutOfMemory", "class_type": "ImageScale"}. Repeat for more.'),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(help='A GPU to share with other simulators, as JSON, such as {"folder": "/tmp/gpu"}.'),
    ] = None,
    cloud: Annotated[bool, typer.Option("--cloud", help="Serve Comfy Cloud's routes instead of ComfyUI's.")] = False,
    api_key: Annotated[str, typer.Option(help="The key that Comfy Cloud's routes require.")] = "simulator-key",
) -> None:
    """Run a simulator of ComfyUI, which needs no GPU and no models, until Ctrl-C."""
    require("simulator")
    from comfyrelay.simulator import read_gpu, read_misbehaviour, serve, slow_from_text

    def print_ready(server: Simulator) -> None:
        out.print(f"A simulator for {'Comfy Cloud' if cloud else 'ComfyUI'} listens at {server.url}", highlight=False)
        out.print(f"  files  {server.folder}", highlight=False)
        if cloud:
            out.print(f"  key    {api_key}", highlight=False)
        out.print("Press Ctrl-C to stop.", highlight=False)

    serving = serve(
        host=host,
        port=port,
        folder=folder,
        checkpoints=checkpoint or ("simulator.safetensors", "broken.safetensors"),
        preview_method=preview_method,
        step_seconds=step_seconds,
        gpu=read_gpu(_json_object(gpu)) if gpu is not None else None,
        cloud=cloud,
        api_key=api_key,
        misbehaviour=[
            *(slow_from_text(each) for each in slow or ()),
            *(read_misbehaviour(_json_object(each)) for each in misbehave or ()),
        ],
        on_ready=print_ready,
    )
    try:
        asyncio.run(serving)
    except OSError as error:
        if error.errno not in (EADDRINUSE, EADDRNOTAVAIL, EACCES):
            raise
        raise ConfigurationError(f"Cannot listen at {host}:{port}. Is it taken? Choose another with --port.") from None


def _json_object(text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise InvalidInput(f"Write a JSON object, not {text!r}.")
    return value
