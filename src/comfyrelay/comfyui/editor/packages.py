"""Name the package of a node that is not installed."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

import structlog

from comfyrelay.comfyui.editor.workflow import Node
from comfyrelay.text import one_line

log = structlog.get_logger(__name__)

# In the data folder. It is not part of ComfyRelay, because its licence differs.
NODE_MAP = "extension-node-map.json"
_MAX_LENGTH = 100
_MAX_FILE_BYTES = 16 * 1024**2
_CORE = "comfy-core"


def package_of(node: Node) -> str | None:
    """Return the package that the file names: an id of the ComfyUI registry, or an owner and repository on GitHub."""
    for key in ("cnr_id", "aux_id"):
        package = node.properties.get(key)
        # Nodes that a newer ComfyUI has are in no package.
        if isinstance(package, str) and (shown := one_line(package)[:_MAX_LENGTH]):
            return "ComfyUI (update it)" if shown == _CORE else shown
    return None


def read_node_map(path: Path) -> Mapping[str, str]:
    """Return the package of each node class from a node map, as ComfyUI-Manager publishes it: for each address of a
    package, a list of its classes. Classes that several packages have are left out.

    Without a readable file there are no packages: the map only improves a message.
    """
    try:
        status = path.stat()
        return _read(path, status.st_mtime, status.st_size)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        log.warning("node_map.unreadable", path=str(path), error=str(error))
        return {}


@lru_cache(maxsize=2)
def _read(path: Path, changed_at: float, size: int) -> Mapping[str, str]:
    if size > _MAX_FILE_BYTES:
        raise ValueError(f"it is larger than {_MAX_FILE_BYTES // 1024**2} MB")
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    date = datetime.fromtimestamp(changed_at, UTC).date()
    found: dict[str, str | None] = {}
    for address, entry in content.items():
        classes = entry[0] if isinstance(entry, list) and entry and isinstance(entry[0], list) else []
        package = one_line(address.removeprefix("https://github.com/"))[:_MAX_LENGTH]
        for name in {name for name in classes if isinstance(name, str)}:
            found[name] = None if name in found else f"{package}, by the node map of {date}"
    return {name: package for name, package in found.items() if package}
