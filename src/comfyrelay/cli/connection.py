"""Call a ComfyRelay that runs here or elsewhere, and print its responses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console

from comfyrelay.cli.target import address

if TYPE_CHECKING:
    from comfyrelay.client import Client

T = TypeVar("T")
out = Console()

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="COMFYRELAY_URL",
        show_envvar=True,
        metavar="URL",
        help="The URL of ComfyRelay. Default: the desk that runs here.",
    ),
]
APPRISE = "an address as apprise writes them, such as ntfy://TOPIC or tgram://TOKEN/CHAT."
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def connected(url: str | None, work: Callable[[Client], Awaitable[T]]) -> T:
    """Run `work` with a client of the chosen ComfyRelay."""
    from comfyrelay.client import Client
    from comfyrelay.settings import load_settings

    async def run() -> T:
        async with Client(url or address(None, load_settings())) as client:
            return await work(client)

    return asyncio.run(run())


def print_json(data: Any) -> None:
    """Print the server's response."""
    from pydantic_core import to_jsonable_python

    out.print_json(data=to_jsonable_python(data))


def print_result(data: Any, shown: Any, *, as_json: bool) -> None:
    if as_json:
        print_json(data)
    else:
        out.print(shown, highlight=False, soft_wrap=isinstance(shown, str))
