"""Whether everything that a manifest lists is as `backup` writes it.

A backup may come from somebody else, so a restore puts nothing outside of the folders that it is to fill, replaces
nothing that belongs to a running process, and makes no link through which something could be written elsewhere.
"""

import os
import posixpath
from collections.abc import Set
from pathlib import Path, PurePosixPath

from comfyrelay.errors import InvalidInput
from comfyrelay.services.backup.locations import DATABASES, FILES, OBJECTS, Places
from comfyrelay.services.backup.manifest import Manifest, ManifestEntry
from comfyrelay.store.sqlite_copy import SIDE_FILES


def check_entries(folder: Path, manifest: Manifest, places: Places) -> None:
    """`InvalidInput` for the first entry that may not be restored."""
    targets: set[Path] = set()
    for each in manifest.entries:
        why = _why_not_path(each.path, places) or _why_not_there(places.target(each.path), each.path, places, targets)
        _refuse(each.path, why)
        targets.add(places.target(each.path))
    for name, path in places.databases.items():
        _refuse(f"{DATABASES}/{name}", "is missing" if path not in targets else None)
    for each in manifest.entries:
        target = places.target(each.path)
        _refuse(each.path, _why_not_beside(target, targets))
        _refuse(each.path, f"is a link to {each.link!r}, out of its folder" if leads_out(each, places) else None)
        _refuse(each.path, _why_not_file(folder, each))


def _refuse(path: str, why: str | None) -> None:
    if why is not None:
        raise InvalidInput(f"The backup is damaged, or was not made by `comfyrelay backup`: {path!r} {why}.")


def _why_not_path(path: str, places: Places) -> str | None:
    kind, _, rest = path.partition("/")
    if kind not in (DATABASES, OBJECTS, FILES) or not rest or "\0" in path or ".." in rest.split("/"):
        return "is no path in a backup"
    # files//etc/passwd is an absolute path once the first part is taken off
    if str(PurePosixPath(path)) != path or rest == ".":
        return "is no path in a backup"
    return "is a database that the settings do not name" if kind == DATABASES and rest not in places.databases else None


def _why_not_there(target: Path, path: str, places: Places, others: Set[Path]) -> str | None:
    if target in others:
        return "is listed twice"
    if path.startswith(f"{DATABASES}/"):
        return None
    # a drive's letter leads away on Windows
    if not target.is_relative_to(places.base(path)):
        return "leads out of the folder that is restored"
    return None if places.is_kept(target, path) else "belongs to a process that runs, and is never in a backup"


def _why_not_beside(target: Path, targets: Set[Path]) -> str | None:
    if not targets.isdisjoint(target.parents):
        return "lies below a file or a link"
    ends = (end for end in SIDE_FILES if target.name.endswith(end))
    if any(target.with_name(target.name.removesuffix(end)) in targets for end in ends if target.name != end):
        return "belongs to a process that runs, and is never in a backup"
    return None


def leads_out(entry: ManifestEntry, places: Places) -> bool:
    """Whether it is a link to anything but what is in the folder that is restored."""
    if entry.link is None:
        return False
    # `..` after a name could be that of another link: what it leads to would not be seen here
    is_normal = "\0" not in entry.link and posixpath.normpath(entry.link) == entry.link
    to = Path(os.path.normpath(places.target(entry.path).parent / entry.link))
    is_inside = to.is_relative_to(places.base(entry.path)) and not posixpath.isabs(entry.link)
    return not (is_normal and is_inside) or entry.path.startswith(f"{DATABASES}/")


def _why_not_file(folder: Path, entry: ManifestEntry) -> str | None:
    file = folder / entry.path
    if entry.link is None and (not file.is_file() or file.stat().st_size != entry.size):
        return "is missing, or not of its size"
    # a link in the backup itself would bring in a file of this machine
    return "is not in the backup itself" if entry.link is None and file.resolve() != file else None
