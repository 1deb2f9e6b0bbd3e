"""Choose the desk or server of a command: the given one, else the desk on this machine, else the default address."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from comfyrelay.settings import Settings

DataDir = Annotated[
    Path | None,
    typer.Option(
        help="Data folder. Default: COMFYRELAY_DATA_DIR, then the folder of the desk that runs here, then "
        "comfyrelay in your folder for application data (on Linux ~/.local/share)."
    ),
]


def find_url(url: str | None, settings: Settings) -> str:
    """Return the URL of the desk or server, which may not be running."""
    from comfyrelay.desk.running_desks import find_desk

    if url:
        return url
    if settings.public_url is None:
        found = find_desk(settings, choose_with="--url or COMFYRELAY_URL")
        if found is not None:
            return found.url
    return settings.base_url.replace("//0.0.0.0:", "//127.0.0.1:")


def load_settings_of(data_dir: Path | None) -> Settings:
    """Read the settings for a data folder: the given folder, or else the folder of the desk on this machine."""
    from comfyrelay.desk.running_desks import find_desk
    from comfyrelay.settings import load_settings

    settings = load_settings(data_dir)
    if data_dir is None:
        found = find_desk(settings, choose_with="--data-dir or COMFYRELAY_DATA_DIR")
        data_dir = found.data_dir if found is not None else settings.data_dir
        # The desk was started with another folder, which has its own configuration file.
        if data_dir.resolve() != settings.data_dir.resolve():
            settings = load_settings(data_dir)
    return settings.model_copy(update={"data_dir": data_dir.expanduser().absolute()})
