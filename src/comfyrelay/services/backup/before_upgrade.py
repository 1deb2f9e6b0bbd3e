"""Copy the SQLite databases before an upgrade. An upgrade changes no other file."""

import shutil
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from urllib.parse import quote

from comfyrelay.clock import utc_now
from comfyrelay.errors import ConfigurationError
from comfyrelay.services.backup.copy_file import disk_errors, make_folder
from comfyrelay.services.backup.locations import BEFORE_UPGRADE
from comfyrelay.store.sqlite_copy import copy_databases
from comfyrelay.system import atomic, files

WITHOUT_COPY = "With COMFYRELAY_BACKUP_BEFORE_UPGRADE=false, the upgrade makes no copy."


def copy_before_upgrade(data_dir: Path, databases: Mapping[str, Path]) -> Path:
    """Copy these databases as of one moment into a new subfolder of the data folder. Returns the subfolder."""
    # The next attempt replaces the leftovers of a killed process.
    part = data_dir / f"{atomic.PART_PREFIX}{BEFORE_UPGRADE}"
    try:
        with disk_errors():
            shutil.rmtree(part, ignore_errors=True)
            make_folder(part)
            copy_databases({path: part / f"{quote(name, safe='')}.db" for name, path in databases.items()})
            folder = _new_folder(data_dir)
            files.replace(part, folder)
    except ConfigurationError as error:
        shutil.rmtree(part, ignore_errors=True)
        raise ConfigurationError(f"The databases were not upgraded: {error.detail} {WITHOUT_COPY}") from error
    return folder


def _new_folder(data_dir: Path) -> Path:
    """Return an unused path with the time in its name."""
    name = f"{BEFORE_UPGRADE}{utc_now():%Y%m%dT%H%M%SZ}"
    paths = (data_dir / (name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(path for path in paths if not path.exists())
