"""Download sources of a workflow's models, which the editor stores for each node.

A converted graph keeps them in `_meta`, which ComfyUI ignores, so that a message about a missing model can name the
source.
"""

from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.text import is_storable, one_line

MODELS = "models"
_FIELDS = ("name", "url", "directory", "hash", "hash_type")
# A node loads only a few models. Longer URLs are signed ones, which expire.
_MAX_MODELS, _MAX_LENGTH = 20, 500


def read_models(properties: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the valid models in the properties of an editor node."""
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
            if source := _source_text(entry):
                found.setdefault(_file_name(entry["name"]), source)
    return found


def not_installed(models: Iterable[Mapping[str, str]], installed: Iterable[str]) -> dict[str, str]:
    """Return the models that a server does not have, with their sources; a source may be empty."""
    known = {_file_name(name) for name in installed}
    return {entry["name"]: _source_text(entry) for entry in models if _file_name(entry["name"]) not in known}


def source_of(sources: Mapping[str, str], model: object) -> str | None:
    """Return the source of a model, given the name in a graph, such as `sdxl/base.safetensors`."""
    return sources.get(_file_name(model)) if isinstance(model, str) else None


def _source_text(entry: Mapping[str, str]) -> str:
    # Other addresses could run code, or lead to a private machine.
    if not entry.get("url", "").startswith("https://"):
        return ""
    return entry["url"] + (f", folder {entry['directory']}" if "directory" in entry else "")


def _file_name(name: str) -> str:
    return PurePosixPath(name.replace("\\", "/")).name


def _text(value: object) -> str:
    is_usable = isinstance(value, str) and len(value) <= _MAX_LENGTH and is_storable(value)
    return one_line(value).strip() if is_usable and isinstance(value, str) else ""
