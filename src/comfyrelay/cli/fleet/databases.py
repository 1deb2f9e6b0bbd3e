"""The databases of the server, for commands that work on them without asking a server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console

from comfyrelay.errors import ConfigurationError
from comfyrelay.extras import require

if TYPE_CHECKING:
    from comfyrelay.services.engine import Engine
    from comfyrelay.settings import Settings

T = TypeVar("T")
# What each of these commands says of itself.
HERE = "It works on the server's databases, as the server's settings name them. COMFYRELAY_URL is not used here."
_URL = "COMFYRELAY_URL"
err = Console(stderr=True)


def with_databases(work: Callable[[Engine], Awaitable[T]]) -> T:
    require("server")
    from comfyrelay.services.engine import Engine
    from comfyrelay.settings import load_settings

    settings = load_settings()
    _require_files(settings)
    meant = os.environ.get(_URL, "").rstrip("/")
    if meant and meant != settings.base_url:
        err.print(f"{_URL} is not used here: this is about the databases of {settings.data_dir}.", highlight=False)

    async def run() -> T:
        async with Engine(settings) as engine:
            await engine.databases.require_current()
            return await work(engine)

    return asyncio.run(run())


def _require_files(settings: Settings) -> None:
    """SQLite would make an empty file of each that is missing."""
    for url in (settings.central_url, *settings.shard_urls.values()):
        file = Path(url.removeprefix("sqlite:///").partition("?")[0])
        if url.startswith("sqlite:///") and not file.is_file():
            text = (
                f"There is no database in {file.parent}. These commands run where the server's "
                "databases can be reached; set COMFYRELAY_DATA_DIR, or COMFYRELAY_DATABASE_URL and "
                "COMFYRELAY_SHARDS, as the server has them."
            )
            if os.environ.get(_URL):
                text += f" {_URL} is not used here: no server is asked."
            raise ConfigurationError(text)
