"""Any file that holds a workflow: JSON of the editor's or the API's format, or what ComfyUI has made with it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from comfyrelay.comfyui.editor.convert import convert_workflow
from comfyrelay.comfyui.editor.embedded import UNREAD_SUFFIXES, read_embedded
from comfyrelay.comfyui.editor.workflow import is_editor_file
from comfyrelay.comfyui.graphs.graph import Graph, check_graph, read_json
from comfyrelay.comfyui.graphs.nodes import MEDIA_SUFFIXES
from comfyrelay.errors import GraphError

# Models are made by ComfyUI, too.
_MADE_SUFFIXES = (*MEDIA_SUFFIXES, ".safetensors")


def may_hold_workflow(path: Path) -> bool:
    """Whether this is the name of a file that could hold one."""
    return path.suffix.lower() == ".json" or (path.suffix.lower() in _MADE_SUFFIXES and path.is_file())


def load_workflow(path: Path) -> Mapping[str, Any]:
    """The graph in a file, or the workflow as ComfyUI's editor has it; `GraphError` says what is wrong with it.

    What ComfyUI has made carries both: the graph has every value as it was.
    """
    if path.suffix.lower() in _MADE_SUFFIXES:
        found = read_embedded(path)
        if found is None:
            why = (
                "a workflow is not read from this kind of file."
                if path.suffix.lower() in UNREAD_SUFFIXES
                else "it carries no workflow. ComfyUI has not made it, or it was stripped on its way."
            )
            raise GraphError(f"{path}: {why} To work on it, name what is to be run, and give this file as its input.")
        return found.graph or found.workflow or {}
    value = read_json(path)
    return value if is_editor_file(value) else check_graph(value)


def as_graph(value: Mapping[str, Any], definitions: Mapping[str, Any]) -> Graph:
    """The graph that a server with these definitions runs."""
    return convert_workflow(value, definitions) if is_editor_file(value) else check_graph(value)
