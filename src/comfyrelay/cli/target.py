"""Which ComfyRelay a command means: the one that is named, else a desk that runs here, else where one would be."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from comfyrelay.settings import Settings

DataDir = Annotated[
    Path | None,
    typer.Option(
        help="The data folder. If not given: that of COMFYRELAY_DATA_DIR, else that of the desk that runs here, else "
        "~/.local/share/comfyrelay."
    ),
]


def address(url: str | None, settings: Settings) -> str:
    """Where the ComfyRelay is that is meant, whether or not it runs."""
    from comfyrelay.desk.running_desks import desk_meant

    if url:
        return url
    if settings.public_url is None:
        found = desk_meant(settings, choose_with="--url or COMFYRELAY_URL")
        if found is not None:
            return found.url
    return settings.base_url.replace("//0.0.0.0:", "//127.0.0.1:")


def with_data_dir(settings: Settings, data_dir: Path | None) -> Settings:
    """The settings of what lies in a folder: the one given, else that of the desk that runs here."""
    from comfyrelay.desk.running_desks import desk_meant

    if data_dir is None:
        found = desk_meant(settings, choose_with="--data-dir or COMFYRELAY_DATA_DIR")
        data_dir = found.data_dir if found is not None else settings.data_dir
    return settings.model_copy(update={"data_dir": data_dir.expanduser().absolute()})
