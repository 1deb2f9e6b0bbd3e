"""Check that the entries of a manifest are safe to restore.

A backup may come from an untrusted source. A restore therefore writes only inside its folders, never replaces the state
of a running process, and creates no links through which files could be written elsewhere.
"""

import os
import posixpath
from collections.abc import Set
from pathlib import Path, PurePosixPath

from comfyrelay.errors import InvalidInput
from comfyrelay.services.backup.locations import DATABASES, FILES, OBJECTS, DataLocations
from comfyrelay.services.backup.manifest import Manifest, ManifestEntry
from comfyrelay.store.sqlite_copy import SIDE_FILES


def check_entries(folder: Path, manifest: Manifest, locations: DataLocations) -> None:
    """Raise `InvalidInput` for the first entry that must not be restored."""
    targets: set[Path] = set()
    for entry in manifest.entries:
        why = _path_problem(entry.path, locations) or _target_problem(
            locations.target(entry.path), entry.path, locations, targets
        )
        _refuse(entry.path, why)
        targets.add(locations.target(entry.path))
    for name, path in locations.databases.items():
        _refuse(f"{DATABASES}/{name}", "is missing" if path not in targets else None)
    for entry in manifest.entries:
        target = locations.target(entry.path)
        _refuse(entry.path, _neighbor_problem(target, targets))
        _refuse(
            entry.path, f"is a link to {entry.link!r}, outside its folder" if points_outside(entry, locations) else None
        )
        _refuse(entry.path, _file_problem(folder, entry))


def _refuse(path: str, why: str | None) -> None:
    if why is not None:
        raise InvalidInput(f"The backup is damaged or was not created by `comfyrelay backup`: {path!r} {why}.")


def _path_problem(path: str, locations: DataLocations) -> str | None:
    kind, _, rest = path.partition("/")
    if kind not in (DATABASES, OBJECTS, FILES) or not rest or "\0" in path or ".." in rest.split("/"):
        return "is not a path in a backup"
    # Without its first part, `files//etc/passwd` would be an absolute path.
    if str(PurePosixPath(path)) != path or rest == ".":
        return "is not a path in a backup"
    return (
        "is a database that the settings do not name" if kind == DATABASES and rest not in locations.databases else None
    )


def _target_problem(target: Path, path: str, locations: DataLocations, others: Set[Path]) -> str | None:
    if target in others:
        return "is listed twice"
    if path.startswith(f"{DATABASES}/"):
        return None
    # On Windows, a drive letter changes the folder.
    if not target.is_relative_to(locations.base(path)):
        return "is outside the folder that is restored"
    return None if locations.is_backed_up(target, path) else "belongs to a running process and is never in a backup"


def _neighbor_problem(target: Path, targets: Set[Path]) -> str | None:
    if not targets.isdisjoint(target.parents):
        return "is below a file or a link"
    ends = (end for end in SIDE_FILES if target.name.endswith(end))
    if any(target.with_name(target.name.removesuffix(end)) in targets for end in ends if target.name != end):
        return "belongs to a running process and is never in a backup"
    return None


def points_outside(entry: ManifestEntry, locations: DataLocations) -> bool:
    """Whether the entry is a link to a target outside the restored folder."""
    if entry.link is None:
        return False
    # `..` after a name could follow another link, whose target is unknown here.
    is_normal = "\0" not in entry.link and posixpath.normpath(entry.link) == entry.link
    target = Path(os.path.normpath(locations.target(entry.path).parent / entry.link))
    is_inside = target.is_relative_to(locations.base(entry.path)) and not posixpath.isabs(entry.link)
    return not (is_normal and is_inside) or entry.path.startswith(f"{DATABASES}/")


def _file_problem(folder: Path, entry: ManifestEntry) -> str | None:
    if entry.link is not None:
        return None
    file = folder / entry.path
    if not file.is_file() or file.stat().st_size != entry.size:
        return "is missing or has the wrong size"
    # Through a link inside the backup, a file of this machine would be read.
    return "is not in the backup itself" if file.resolve() != file else None
