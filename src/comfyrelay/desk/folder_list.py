"""List and create folders of the desk's machine, so that its owner can choose one."""

import asyncio
import os
from pathlib import Path

from comfyrelay.errors import Conflict, InvalidInput, NotFound
from comfyrelay.protocol.desk_settings import FolderList
from comfyrelay.text import is_storable, natural_key

MAX_FOLDERS = 500
# A folder may have millions of files, which are read one by one.
MAX_ENTRIES = 100_000


async def list_folders(path: str, *, shows_hidden: bool = False) -> FolderList:
    """List the folders in a folder; in the home folder if `path` is empty."""
    return await asyncio.to_thread(_list, path, shows_hidden=shows_hidden)


async def create_folder(path: str) -> FolderList:
    """Create a folder in an existing one, and list it. It may exist already."""
    return await asyncio.to_thread(_create, path)


def _create(path: str) -> FolderList:
    folder = _folder(path)
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise Conflict(f"{path} cannot be created: {error.strerror}.") from None
    return _list(path, shows_hidden=False)


def _folder(path: str) -> Path:
    if "\0" in path:
        raise InvalidInput(errors={"path": "This is not the path of a folder."})
    folder = Path(path).expanduser() if path else Path.home()
    if not folder.is_absolute():
        raise InvalidInput(errors={"path": "Write the full path, which begins at the top folder."})
    # Links are not resolved: the page compares the path with the folder that it started in.
    return Path(os.path.normpath(folder))


def _list(path: str, *, shows_hidden: bool) -> FolderList:
    folder = _folder(path)
    try:
        with os.scandir(folder) as entries:
            found = [
                entry.name
                for entry, _ in zip(entries, range(MAX_ENTRIES), strict=False)
                if (shows_hidden or not entry.name.startswith(".")) and is_storable(entry.name) and entry.is_dir()
            ]
    except FileNotFoundError:
        raise NotFound(f"There is no folder {path}.") from None
    except NotADirectoryError:
        raise NotFound(f"{path} is a file, not a folder.") from None
    except PermissionError:
        raise Conflict(f"The desk may not read {folder}. Choose another folder, or change its permissions.") from None
    except (OSError, RuntimeError, ValueError) as error:
        raise Conflict(f"{path} cannot be read: {getattr(error, 'strerror', None) or 'it is not a folder'}.") from None
    found.sort(key=natural_key)
    return FolderList(
        path=str(folder),
        parent=None if folder.parent == folder else str(folder.parent),
        folders=found[:MAX_FOLDERS],
        more=max(0, len(found) - MAX_FOLDERS),
    )
