"""`comfyrelay nodes`: the packages that nodes belong to."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from comfyrelay.cli.output import print_line
from comfyrelay.cli.target import DataDir, load_settings_of
from comfyrelay.errors import InvalidInput

nodes_app = typer.Typer(no_args_is_help=True, help="Update the list of the packages that nodes belong to.")
# The list of ComfyUI-Manager. It is fetched and not part of ComfyRelay, because its license differs (GPL-3.0).
NODE_MAP_URL = "https://raw.githubusercontent.com/Comfy-Org/ComfyUI-Manager/main/extension-node-map.json"
FETCH_SECONDS = 60


@nodes_app.callback()
def group() -> None:
    # With a single command, Typer would drop the name of the command.
    pass


@nodes_app.command()
def update(
    source: Annotated[str, typer.Option(help="URL or file of the list.")] = NODE_MAP_URL,
    data_dir: DataDir = None,
) -> None:
    """Fetch the public list of ComfyUI-Manager into the data folder.

    Messages about missing nodes then name the package to install, even if a file names none.
    """
    from comfyrelay.comfyui.editor.packages import NODE_MAP, write_node_map

    path = load_settings_of(data_dir).data_dir / NODE_MAP
    is_url = source.startswith(("https://", "http://"))
    count = write_node_map(path, asyncio.run(_fetch(source)) if is_url else _read(Path(source)))
    if not is_url:
        # The messages show the date of the list.
        changed_at = Path(source).stat().st_mtime
        os.utime(path, (changed_at, changed_at))
    print_line(f"Packages of {count:,} node classes are in {path}.")


async def _fetch(url: str) -> bytes:
    import httpx

    from comfyrelay.http_client import http_client

    try:
        async with http_client(timeout=FETCH_SECONDS, follow_redirects=True) as client:
            response = await client.get(url)
            response.raise_for_status()
            return response.content
    except httpx.HTTPStatusError as error:
        raise InvalidInput(f"{url} answered with {error.response.status_code}.") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise InvalidInput(f"{url} cannot be reached: {error}") from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}.") from None
