"""Call the desk or server of a command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

from comfyrelay.cli.options import url_option
from comfyrelay.cli.output import print_note
from comfyrelay.cli.target import find_url
from comfyrelay.errors import InvalidInput

if TYPE_CHECKING:
    from comfyrelay.client import Client, Found

T = TypeVar("T")
Url = Annotated[str | None, url_option("URL of the desk or server. Default: the desk that runs here.")]


def connected(url: str | None, work: Callable[[Client], Awaitable[T]]) -> T:
    """Run `work` with a client of the chosen desk or server."""
    from comfyrelay.client import Client

    async def run() -> T:
        async with Client(url or _url_here()) as client:
            return await work(client)

    return asyncio.run(run())


def _url_here() -> str:
    from comfyrelay.settings import load_settings

    return find_url(None, load_settings())


async def take(items: AsyncIterator[T], limit: int) -> list[T]:
    """Return the first `limit` items."""
    found: list[T] = []
    async for item in items:
        found.append(item)
        if len(found) == limit:
            break
    return found


async def note_pause(client: Client) -> None:
    """Print a note if the queue is paused."""
    if (text := (await client.queue_counts()).pause_text) is not None:
        print_note(f"{text} The command is `comfyrelay resume`.", style="yellow")


async def find_job_or_batch(client: Client, text: str, *, kind: str | None = None) -> Found:
    """Find a job or batch by its id, or by the beginning or end of the id."""
    from comfyrelay.client import find

    found = await find(client, text)
    if kind not in (None, found.kind):
        raise InvalidInput(f"{text!r} is a {found.kind}, not a {kind}.")
    return found
