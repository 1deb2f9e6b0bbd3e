"""Name the package of a node that is not installed."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

import structlog

from comfyrelay.comfyui.editor.workflow import Node
from comfyrelay.errors import InvalidInput
from comfyrelay.system.atomic import write
from comfyrelay.text import one_line

log = structlog.get_logger(__name__)

# In the data folder. The map is not part of ComfyRelay, because its license differs.
NODE_MAP = "extension-node-map.json"
_MAX_LENGTH = 100
_MAX_FILE_BYTES = 16 * 1024**2
_TOO_LARGE = f"it is larger than {_MAX_FILE_BYTES // 1024**2} MB"
_CORE = "comfy-core"
# The addresses of ComfyUI itself in the map.
_CORE_ADDRESSES = ("comfyanonymous/ComfyUI", "Comfy-Org/ComfyUI")
_UPDATE = "ComfyUI (update it)"


def package_of(node: Node) -> str | None:
    """Return the package that the file names: an id of the ComfyUI registry, or an owner and repository on GitHub."""
    for key in ("cnr_id", "aux_id"):
        package = node.properties.get(key)
        # Nodes of ComfyUI itself are not in a package: a missing node needs a newer ComfyUI.
        if isinstance(package, str) and (shown := one_line(package)[:_MAX_LENGTH]):
            return _UPDATE if shown == _CORE else shown
    return None


def read_node_map(path: Path) -> Mapping[str, str]:
    """Return the package of each node class from a node map in the format of ComfyUI-Manager, which lists the classes
    of each package address. Classes that occur in several packages are left out.

    If the file cannot be read, the result is empty: the map only improves a message.
    """
    try:
        status = path.stat()
        return _read(path, status.st_mtime, status.st_size)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        log.warning("node_map.unreadable", path=str(path), error=str(error))
        return {}


def write_node_map(path: Path, content: bytes) -> int:
    """Replace a node map, and return the number of classes with a package. Raises `InvalidInput` if there are none."""
    try:
        found = [name for name, package in _packages_in(content).items() if package]
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"This is not a node map: {error}.") from None
    if not found:
        raise InvalidInput("This is not a node map: it contains no node class.")
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, content)
    return len(found)


@lru_cache(maxsize=2)
def _read(path: Path, changed_at: float, size: int) -> Mapping[str, str]:
    if size > _MAX_FILE_BYTES:
        raise ValueError(_TOO_LARGE)
    date = datetime.fromtimestamp(changed_at, UTC).date()
    return {
        name: package if package == _UPDATE else f"{package}, from the node map of {date}"
        for name, package in _packages_in(path.read_bytes()).items()
        if package
    }


def _packages_in(content: bytes) -> dict[str, str | None]:
    """Return the package of each class, or `None` if the class occurs in several packages."""
    if len(content) > _MAX_FILE_BYTES:
        raise ValueError(_TOO_LARGE)
    packages = json.loads(content)
    if not isinstance(packages, dict):
        raise ValueError("it is not a JSON object")
    found: dict[str, str | None] = {}
    for address, entry in packages.items():
        classes = entry[0] if isinstance(entry, list) and entry and isinstance(entry[0], list) else []
        package = one_line(address.removeprefix("https://github.com/"))[:_MAX_LENGTH]
        for name in {name for name in classes if isinstance(name, str)}:
            found[name] = None if name in found else _UPDATE if package in _CORE_ADDRESSES else package
    return found
