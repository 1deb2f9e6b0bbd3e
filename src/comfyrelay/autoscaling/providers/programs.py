"""Find the programs that fleets may run on this host. Only programs in the configured folder are allowed."""

import hashlib
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from comfyrelay.configuration import ENV_PREFIX
from comfyrelay.errors import ConfigurationError

_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
SETTING = f"{ENV_PREFIX}FLEET_COMMANDS_DIR"


def program(folder: Path | None, name: str) -> Path:
    """Return the program with this name. Raises `ConfigurationError` if it does not exist or may not run."""
    if folder is None:
        raise ConfigurationError(
            f"The fleet cannot run {name!r}, because {SETTING} is not set. Set it to the folder with the programs that "
            "fleets may run."
        )
    if Path(name).name != name or name in (".", ".."):
        raise ConfigurationError(f"{name!r} is not a file name. Name a program in {folder}, without its folder.")
    path = folder / name
    if not path.is_file():
        raise ConfigurationError(f"There is no program {name} in {folder}.")
    if shutil.which(path) is None:
        raise ConfigurationError(f"{path} is not executable. Run chmod +x on it.")
    return path


def fleet_secret(secrets: Mapping[str, Sequence[str]], stage: str) -> str:
    """Return the registration secret of a stage. Raises `ConfigurationError` if there is none."""
    if not secrets.get(stage):
        raise ConfigurationError(
            f"Workers cannot register, because {stage} has no fleet secret: add one to COMFYRELAY_FLEET_SECRETS."
        )
    return secrets[stage][0]


def folder_name(name: str) -> str:
    """Return a valid folder name that is unique for this name."""
    return name if _SAFE.fullmatch(name) else f"_{hashlib.sha256(name.encode()).hexdigest()[:40]}"
