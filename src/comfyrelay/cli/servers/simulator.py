"""`comfyrelay simulator`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from comfyrelay.cli.options import check_port_or_0
from comfyrelay.cli.output import print_line
from comfyrelay.cli.running import explained_port
from comfyrelay.errors import ConfigurationError, InvalidInput
from comfyrelay.extras import require
from comfyrelay.http_client import is_loopback

if TYPE_CHECKING:
    from comfyrelay.simulator import Simulator

API_KEY = "simulator-key"


def simulator(
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0 chooses a free one.", callback=check_port_or_0)
    ] = 8188,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    folder: Annotated[
        Path | None, typer.Option(help="Folder for input, output and temp files. Default: a temporary folder.")
    ] = None,
    checkpoint: Annotated[list[str] | None, typer.Option(help="Name of an installed checkpoint. Repeatable.")] = None,
    slow: Annotated[
        list[str] | None, typer.Option(help="CLASS=SECONDS: nodes of this class take this long. Repeatable.")
    ] = None,
    preview_method: Annotated[
        Literal["none", "auto", "latent2rgb", "taesd"],
        typer.Option(help="Preview method for prompts that do not specify one."),
    ] = "none",
    step_seconds: Annotated[float, typer.Option(help="Seconds per sampler step.", min=0)] = 0.0,
    misbehave: Annotated[
        list[str] | None,
        typer.Option(help='A fault as JSON, such as {"name": "OutOfMemory", "class_type": "ImageScale"}. Repeatable.'),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(help='A GPU to share with other simulators, as JSON, such as {"folder": "/tmp/gpu"}.'),
    ] = None,
    cloud: Annotated[bool, typer.Option("--cloud", help="Simulate Comfy Cloud instead of ComfyUI.")] = False,
    api_key: Annotated[str, typer.Option(help="With --cloud: the required API key.")] = API_KEY,
    secret: Annotated[
        str | None,
        typer.Option(
            envvar="COMFYRELAY_SIMULATOR_SECRET",
            show_envvar=True,
            help="Password that every request needs. User: simulator.",
        ),
    ] = None,
    no_secret: Annotated[
        bool, typer.Option("--no-secret", help="Let other machines connect without a password, like ComfyUI.")
    ] = False,
) -> None:
    """Simulate ComfyUI without a GPU or models, until Ctrl-C."""
    require("simulator")
    from comfyrelay.simulator import Simulator, read_gpu, read_misbehaviour, slow_from_text

    has_password = api_key != API_KEY if cloud else bool(secret)
    if not (is_loopback(host) or has_password or no_secret):
        raise ConfigurationError(
            f"Other machines can reach {host}: set {'--api-key' if cloud else 'COMFYRELAY_SIMULATOR_SECRET'}, or allow "
            "everybody with --no-secret."
        )
    server = Simulator(
        host=host,
        port=port,
        secret=None if cloud else secret or None,
        folder=folder,
        models={"checkpoints": checkpoint or ["simulator.safetensors", "broken.safetensors"]},
        preview_method=preview_method,
        step_seconds=step_seconds,
        gpu=read_gpu(_json_object(gpu)) if gpu is not None else None,
        cloud=cloud,
        api_key=api_key,
        misbehaviour=[
            *map(slow_from_text, slow or ()),
            *(read_misbehaviour(_json_object(text)) for text in misbehave or ()),
        ],
    )
    _run(server, address=f"{host}:{port}", key=api_key if cloud else None)


def _run(server: Simulator, *, address: str, key: str | None) -> None:
    """Serve until Ctrl-C. If `key` is given, simulate Comfy Cloud."""
    from comfyrelay.simulator import serve

    def print_ready(server: Simulator) -> None:
        print_line(f"A simulator for {'ComfyUI' if key is None else 'Comfy Cloud'} listens at {server.url}")
        print_line(f"  files  {server.folder}")
        if key is not None:
            print_line(f"  key    {key}")
        print_line("Press Ctrl-C to stop.")

    with explained_port(address):
        asyncio.run(serve(server, on_ready=print_ready))


def _json_object(text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise InvalidInput(f"Write a JSON object, not {text!r}.")
    return value
