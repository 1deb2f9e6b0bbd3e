"""Choose the output node of a graph, and the type of its file."""

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.graphs.nodes import output_nodes
from comfyrelay.comfyui.outputs import OutputFile
from comfyrelay.domain.properties import PropertyType, kind_of
from comfyrelay.errors import GraphError
from comfyrelay.services.forms.inputs import FORMAT_INPUTS, specs_of
from comfyrelay.services.forms.wiring import Wiring
from comfyrelay.text import natural_key

# Savers whose extension cannot be guessed from their name or inputs.
_EXTENSIONS = {
    "SaveAnimatedWEBP": "webp",
    "SaveAnimatedPNG": "png",
    "SaveWEBM": "webm",
    "SaveAudioMP3": "mp3",
    "SaveAudioOpus": "opus",
    "SaveSVGNode": "svg",
    "SaveGLB": "glb",
    "SaveLatent": "latent",
    "PreviewAny": "txt",
}
# Default extensions by type.
_BY_KIND = {"VIDEO": "mp4", "AUDIO": "flac", "IMAGE": "png"}
# Models have many formats, and packs define their own types, so jobs with this extension accept any file and any text.
_ANY = "bin"
_MODELS = re.compile(r"FILE_3D|MESH|SPLAT|VOXEL")
_SAVER = re.compile(r"save|video_?combine", re.IGNORECASE)
_PREVIEW = re.compile(r"preview|show|display", re.IGNORECASE)
_TEXT = re.compile(r"text|string", re.IGNORECASE)
_TEXT_TYPES = frozenset({"STRING", "*"})
_VALUES = _TEXT_TYPES | {"INT", "FLOAT", "BOOLEAN", "COMBO"}
_WORD = re.compile(r"[a-z0-9]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputNode:
    node_id: str
    extension: str

    @property
    def mime_type(self) -> str:
        return OutputFile(node_id=self.node_id, filename=f"output.{self.extension}").mime_type


def find_output_nodes(graph: Graph, object_info: Mapping[str, Any]) -> list[str]:
    """Return the output nodes of a graph. Nodes without a definition are guessed by name."""
    savers = (node_id for node_id, node in graph.items() if _SAVER.search(node["class_type"]))
    guessed = {*output_nodes(graph), *savers}
    unknown = [node_id for node_id in guessed if graph[node_id]["class_type"] not in object_info]
    found = [*output_nodes(graph, object_info), *unknown]
    if not found:
        raise GraphError("The workflow has no output node. Add a node that saves or previews something.")
    return sorted(found, key=natural_key)


def choose_output(graph: Graph, savers: Sequence[str], object_info: Mapping[str, Any]) -> OutputNode:
    """Choose the main output. Prefer saved files to previews, videos to images, and late nodes to early nodes."""
    dependencies = Wiring(graph).count_dependencies()
    outputs = [OutputNode(node_id=saver, extension=_extension(graph[saver], object_info)) for saver in savers]

    def rank(output: OutputNode) -> tuple[bool, bool, bool, int]:
        node = graph[output.node_id]
        is_preview = _PREVIEW.search(node["class_type"]) or node["inputs"].get("save_output") is False
        kind = kind_of(f"output.{output.extension}")
        is_moving = kind is PropertyType.VIDEO or _is_animated(node, output)
        return kind is None, bool(is_preview), not is_moving, -dependencies[output.node_id]

    return min(outputs, key=rank)


def _is_animated(node: Mapping[str, Any], output: OutputNode) -> bool:
    name = node["class_type"].lower()
    return "animated" in name or (output.extension in {"gif", "webp"} and "video" in name)


def _extension(node: Mapping[str, Any], object_info: Mapping[str, Any]) -> str:
    class_type = str(node["class_type"])
    if class_type in _EXTENSIONS:
        return _EXTENSIONS[class_type]
    texts = [str(node["inputs"].get(name, "")).lower() for name in sorted(FORMAT_INPUTS)]
    # Formats have forms like "video/h264-mp4", "image/gif" or ".png".
    format_words: list[str] = [word for text in texts for word in reversed(_WORD.findall(text))]
    endings = [word for word in format_words if kind_of(f"output.{word}")]
    if endings:
        return endings[0]
    if any("prores" in text for text in texts):
        return "mov"
    types = {str(spec[0]) for name, spec in specs_of(node, object_info).items() if name in node["inputs"]}
    words = f"{class_type} {' '.join(node['inputs'])}".upper()
    # A video combiner takes images and audio. Only its name shows that its output is a video.
    found = next((ending for kind, ending in _BY_KIND.items() if kind in types or kind in words), None)
    if found is None and any(_MODELS.match(type_) for type_ in types):
        return _ANY
    return found or ("txt" if _shows_text(class_type, types) else "png")


def _shows_text(class_type: str, types: Set[str]) -> bool:
    """Return whether a node accepts only texts, numbers or any type, and no media."""
    if not types:
        # Without a definition, only the name is known.
        return _TEXT.search(class_type) is not None
    # The type of a choice is the list of its choices.
    return not types.isdisjoint(_TEXT_TYPES) and all(type_ in _VALUES or type_.startswith("[") for type_ in types)
