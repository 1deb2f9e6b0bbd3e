"""Find nodes by id or title, set their inputs, and list the files they name."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from comfyrelay.comfyui.graphs.graph import Graph, is_link
from comfyrelay.comfyui.graphs.hash import MODEL_SUFFIXES
from comfyrelay.errors import GraphError

MEDIA_SUFFIXES = (
    *(".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif", ".apng", ".svg", ".exr"),
    *(".mp4", ".webm", ".mkv", ".mov", ".avi", ".m4v", ".mpg", ".mpeg"),
    *(".wav", ".mp3", ".flac", ".ogg", ".opus", ".m4a", ".aac"),
    *(".glb", ".gltf", ".obj", ".ply", ".latent"),
)
# The suffix of a file name that names its server folder.
FOLDER_MARKS = (" [input]", " [output]", " [temp]")


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedFile:
    """A file that is named in an input of a graph."""

    node_id: str
    class_type: str
    input: str
    name: str


def title_of(graph: Graph, node_id: str) -> str:
    """Return the node's title in the editor, or its class."""
    node = graph[node_id]
    meta = node.get("_meta")
    title = meta.get("title") if isinstance(meta, dict) else None
    return title if isinstance(title, str) and title else str(node["class_type"])


def find_node(graph: Graph, node: str) -> str:
    """Return the id of the node with this id or title. Raises `GraphError` if there is none or more than one."""
    if node in graph:
        return node
    found = [node_id for node_id in graph if title_of(graph, node_id) == node]
    if not found:
        raise GraphError(f'The graph has no node with the id or title "{node}".')
    if len(found) > 1:
        raise GraphError(f'Several nodes have the title "{node}" ({", ".join(found)}): use an id.')
    return found[0]


def set_input(graph: Graph, node: str, name: str, value: Any) -> None:
    """Set an input of a node, given by id or title, in place."""
    graph[find_node(graph, node)]["inputs"][name] = value


def output_nodes(graph: Graph, object_info: Mapping[str, Any] | None = None) -> list[str]:
    """Return the output nodes.

    Without `object_info` this is a guess: savers, previews, and other nodes without successors.
    """
    if object_info is not None:
        definitions = {node_id: object_info.get(node["class_type"]) for node_id, node in graph.items()}
        return [
            node_id
            for node_id, definition in definitions.items()
            if isinstance(definition, dict) and definition.get("output_node") is True
        ]
    linked = {value[0] for node in graph.values() for value in node["inputs"].values() if is_link(value)}
    return [
        node_id
        for node_id, node in graph.items()
        if node_id not in linked or node["class_type"].startswith(("Save", "Preview"))
    ]


def models_in(graph: Graph) -> list[NamedFile]:
    """Return the model files that a graph names."""
    return [literal for literal in _literals(graph) if literal.name.lower().endswith(MODEL_SUFFIXES)]


def files_in(graph: Graph) -> list[NamedFile]:
    """Return the images, videos and other media that a graph names."""
    return [literal for literal in _literals(graph) if _without_mark(literal.name).lower().endswith(MEDIA_SUFFIXES)]


def with_prefix(graph: Graph, folder: str) -> Graph:
    """Return the graph with each output node saving into `folder`, with unchanged file names.

    ComfyUI does not run an output node again if its inputs are unchanged: it returns the old file, which may be
    deleted. With a new folder for each run, the node runs and saves.
    """
    return {node_id: _with_folder_prefix(node, folder) for node_id, node in graph.items()}


def _with_folder_prefix(node: dict[str, Any], folder: str) -> dict[str, Any]:
    prefix = node["inputs"].get("filename_prefix")
    if not isinstance(prefix, str):
        return node
    # Only the last part: a prefix must not lead out of the folder.
    name = PurePosixPath(prefix.replace("\\", "/")).name or "out"
    return {**node, "inputs": {**node["inputs"], "filename_prefix": f"{folder}/{'out' if name == '..' else name}"}}


def _without_mark(name: str) -> str:
    for mark in FOLDER_MARKS:
        name = name.removesuffix(mark)
    return name


def _literals(graph: Graph) -> Iterator[NamedFile]:
    for node_id, node in graph.items():
        for name, value in node["inputs"].items():
            # A prompt may end like a file name, but is rarely a single line of at most 255 characters.
            if isinstance(value, str) and len(value) <= 255 and "\n" not in value:
                yield NamedFile(node_id=node_id, class_type=node["class_type"], input=name, name=value)
