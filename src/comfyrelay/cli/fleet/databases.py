"""Access to the server's databases, for commands that do not call a server."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from comfyrelay.cli.output import print_note
from comfyrelay.cli.running import run_with_engine
from comfyrelay.errors import ConfigurationError
from comfyrelay.extras import require

if TYPE_CHECKING:
    from comfyrelay.services.engine import Engine
    from comfyrelay.settings import Settings

T = TypeVar("T")
# Printed below the help of these commands.
DATABASES_NOTE = "This command uses the server's databases and settings, and ignores COMFYRELAY_URL."
_URL = "COMFYRELAY_URL"


def with_databases(work: Callable[[Engine], Awaitable[T]]) -> T:
    """Run `work` with an engine on existing databases with the newest schema."""
    require("server")
    from comfyrelay.settings import load_settings

    settings = load_settings()
    _require_files(settings)
    url = os.environ.get(_URL, "").rstrip("/")
    if url and url != settings.base_url:
        print_note(f"Ignoring {_URL}: this command uses the databases in {settings.data_dir}.")

    async def run(engine: Engine) -> T:
        await engine.databases.require_current()
        return await work(engine)

    return run_with_engine(run)


def _require_files(settings: Settings) -> None:
    """Refuse a missing database: SQLite would create an empty file."""
    for url in (settings.central_url, *settings.shard_urls.values()):
        file = Path(url.removeprefix("sqlite:///").partition("?")[0])
        if url.startswith("sqlite:///") and not file.is_file():
            text = (
                f"There is no database in {file.parent}. Set COMFYRELAY_DATA_DIR, or COMFYRELAY_DATABASE_URL and "
                "COMFYRELAY_SHARDS, to the values of the server."
            )
            if os.environ.get(_URL):
                text += f" This command ignores {_URL}."
            raise ConfigurationError(text)
