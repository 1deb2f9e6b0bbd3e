"""Programs on this host that fleets may run: only those in the folder named by the server's settings."""

import hashlib
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from comfyrelay.configuration import ENV_PREFIX
from comfyrelay.errors import ConfigurationError

_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
SETTING = f"{ENV_PREFIX}FLEET_COMMANDS_DIR"


def program(folder: Path | None, name: str) -> Path:
    """Return the program of this name. Raises `ConfigurationError` if it does not exist or may not run."""
    if folder is None:
        raise ConfigurationError(
            f"{SETTING} is not set: fleets may run no program of this host, and {name!r} is one. Name the folder with "
            "the programs that they may run."
        )
    if Path(name).name != name or name in (".", ".."):
        raise ConfigurationError(f"{name!r} is no name of a file: name a program in {folder}, without its folder.")
    path = folder / name
    if not path.is_file():
        raise ConfigurationError(f"There is no program {name} in {folder}.")
    if shutil.which(path) is None:
        raise ConfigurationError(f"{path} may not be run: make it executable (chmod +x).")
    return path


def plain_environment() -> Mapping[str, str]:
    """Environment for programs: without the server's settings, which contain passwords."""
    return {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}


def folder_name(name: str) -> str:
    """A unique folder name."""
    return name if _SAFE.fullmatch(name) else f"_{hashlib.sha256(name.encode()).hexdigest()[:40]}"
