"""Load a workflow from any file: editor or API JSON, or media made by ComfyUI.

A desk imports this module when it starts, so the modules that read and convert files are imported only on first use.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from comfyrelay.comfyui.editor.workflow import is_editor_file
from comfyrelay.comfyui.graphs.graph import Graph, check_graph, read_json
from comfyrelay.comfyui.graphs.nodes import MEDIA_SUFFIXES
from comfyrelay.errors import GraphError

# ComfyUI can also save models.
_MADE_SUFFIXES = (*MEDIA_SUFFIXES, ".safetensors")


def may_hold_workflow(path: Path) -> bool:
    """Whether a file with this name could contain a workflow."""
    return path.suffix.lower() == ".json" or (path.suffix.lower() in _MADE_SUFFIXES and path.is_file())


def load_workflow(path: Path) -> Mapping[str, Any]:
    """Return the graph or the editor workflow in a file. Raises `GraphError` if there is none.

    Media made by ComfyUI contain both. The graph is preferred, because it has the exact values.
    """
    if path.suffix.lower() in _MADE_SUFFIXES:
        from comfyrelay.comfyui.editor.embedded import UNREAD_SUFFIXES, read_embedded  # noqa: PLC0415

        found = read_embedded(path)
        if found is None:
            why = (
                "workflows cannot be read from this file type."
                if path.suffix.lower() in UNREAD_SUFFIXES
                else "it contains no workflow. ComfyUI did not make it, or the metadata was removed."
            )
            raise GraphError(f"{path}: {why} To use the file as an input, name a workflow and pass the file to it.")
        return found.graph or found.workflow or {}
    value = read_json(path)
    return value if is_editor_file(value) else check_graph(value)


def as_graph(value: Mapping[str, Any], node_definitions: Mapping[str, Any], *, node_map: Path | None = None) -> Graph:
    """Convert a workflow into a graph for a server with these node definitions.

    `node_map` is a file that names the packages of missing nodes.
    """
    if not is_editor_file(value):
        return check_graph(value)
    from comfyrelay.comfyui.editor.convert import convert_workflow  # noqa: PLC0415
    from comfyrelay.comfyui.editor.packages import read_node_map  # noqa: PLC0415

    packages = {} if node_map is None else read_node_map(node_map)
    return convert_workflow(value, node_definitions, known_packages=packages)
