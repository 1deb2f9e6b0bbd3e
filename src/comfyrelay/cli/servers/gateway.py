"""`comfyrelay gateway`."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Annotated

import typer

from comfyrelay.cli.options import check_port_or_0
from comfyrelay.cli.output import print_line
from comfyrelay.cli.running import explained_port
from comfyrelay.errors import ConfigurationError
from comfyrelay.extras import require

if TYPE_CHECKING:
    from comfyrelay.gateway import Gateway


def gateway(
    url: Annotated[
        str,
        typer.Option(
            "--url",
            envvar="COMFYRELAY_COMFYUI_API_URL",
            show_envvar=True,
            metavar="URL",
            help="Address of ComfyUI's API of the server.",
        ),
    ],
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0 chooses a free one.", callback=check_port_or_0)
    ] = 8188,
) -> None:
    """Serve ComfyUI's API on this machine for programs that send no token, until Ctrl-C.

    It adds your token from COMFYRELAY_TOKEN.
    """
    require("gateway")
    from comfyrelay.gateway import Gateway

    token = os.environ.get("COMFYRELAY_TOKEN")
    if not token:
        raise ConfigurationError("Set COMFYRELAY_TOKEN to one of your API tokens.")
    with explained_port(f"127.0.0.1:{port}"):
        asyncio.run(_serve(Gateway(url, token=token, port=port), url))


async def _serve(gateway: Gateway, url: str) -> None:
    from comfyrelay.system.signals import on_stop

    stopped = asyncio.Event()
    with on_stop(lambda _number: stopped.set()):
        async with gateway:
            print_line(f"ComfyUI's API of {url} is at {gateway.url}")
            print_line("Every program on this machine can use it with your rights. Press Ctrl-C to stop.")
            await stopped.wait()
