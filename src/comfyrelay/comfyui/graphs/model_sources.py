"""Where the author of a workflow got its models, as the editor stores it for each node.

A converted graph keeps it in `_meta`, which ComfyUI ignores, so that a message about a missing model can name it.
"""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.text import is_storable, one_line

MODELS = "models"
_FIELDS = ("name", "url", "directory", "hash", "hash_type")
# A node loads a few models. A signed URL may be long, but such a URL expires.
_MAX_MODELS, _MAX_LENGTH = 20, 500


def read_models(properties: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the models that a node of the editor names, without invalid entries."""
    stored = properties.get(MODELS)
    models = [entry for entry in stored[:_MAX_MODELS] if isinstance(entry, dict)] if isinstance(stored, list) else []
    found = [{name: text for name in _FIELDS if (text := _text(entry.get(name)))} for entry in models]
    return [entry for entry in found if "name" in entry]


def sources_in(graph: Graph) -> dict[str, str]:
    """Return the sources of a graph's models by file name, without folders."""
    found: dict[str, str] = {}
    for node in graph.values():
        meta = node.get("_meta")
        for entry in read_models(meta if isinstance(meta, dict) else {}):
            # Other addresses could run something, or lead to a private machine.
            if entry.get("url", "").startswith("https://"):
                folder = f", folder {entry['directory']}" if "directory" in entry else ""
                found.setdefault(_file_name(entry["name"]), f"{entry['url']}{folder}")
    return found


def source_of(sources: Mapping[str, str], model: object) -> str | None:
    """Return the source of a model as a graph names it, such as `sdxl/base.safetensors`."""
    return sources.get(_file_name(model)) if isinstance(model, str) else None


def _file_name(name: str) -> str:
    return PurePosixPath(name.replace("\\", "/")).name


def _text(value: object) -> str:
    is_usable = isinstance(value, str) and len(value) <= _MAX_LENGTH and is_storable(value)
    return one_line(value).strip() if is_usable and isinstance(value, str) else ""
