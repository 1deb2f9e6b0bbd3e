"""Find running desks: the desk that a command refers to, and a desk with the same folder."""

from pathlib import Path
from urllib.parse import urlsplit

from comfyrelay.errors import ConfigurationError
from comfyrelay.settings import Settings
from comfyrelay.system.owner_secret import RunningDesk, running_desks


def find_desk(settings: Settings, *, choose_with: str) -> RunningDesk | None:
    """Return the running desk with the configured port and folder, or the only one if neither is configured.

    Raises `ConfigurationError` if several match.
    """
    given = settings.model_fields_set
    found = [
        desk
        for desk in running_desks()
        if ("port" not in given or urlsplit(desk.url).port == settings.port)
        and ("data_dir" not in given or desk.data_dir.resolve() == settings.data_dir.resolve())
    ]
    if len(found) > 1:
        desks = ", ".join(map(str, found))
        raise ConfigurationError(f"{len(found)} desks are running: {desks}. Choose one with {choose_with}.")
    return found[0] if found else None


def refuse_second(folder: Path) -> None:
    """Raise `ConfigurationError` if a desk runs with this folder."""
    for desk in running_desks():
        if desk.data_dir.resolve() == folder.resolve():
            raise ConfigurationError(
                f"Your desk already runs at {desk.url}: `comfyrelay open` opens it. A second desk needs another folder "
                "(--data-dir) and another port (--port)."
            ) from None
