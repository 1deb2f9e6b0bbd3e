"""The workflow hash: the same for two graphs that need the same nodes and models, whatever their prompts."""

import hashlib
import json
from operator import itemgetter
from typing import Any

from comfyrelay.comfyui.graphs.graph import Graph, is_link

MODEL_SUFFIXES = (
    *(".safetensors", ".sft", ".ckpt", ".pt", ".pt2", ".pth", ".bin", ".gguf", ".ggml", ".onnx"),
    *(".engine", ".trt", ".pkl", ".pickle", ".npz", ".torchscript", ".tflite", ".task", ".nemo"),
)


_name = itemgetter(0)
# Made once: json.dumps with separators makes an encoder per call.
_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def workflow_hash(graph: Graph) -> str:
    """Return the SHA-256 of a graph's structure, in hexadecimal.

    Node ids, `class_type`, links, names of inputs and names of model files count; prompts, seeds, sizes,
    titles and the order of keys do not.
    """
    nodes = [_node(node_id, graph[node_id]) for node_id in sorted(graph)]
    # JSON rather than repr: the hash must be the same in every version of Python
    return hashlib.sha256(_encode(nodes).encode()).hexdigest()


def _node(node_id: str, node: dict[str, Any]) -> list[Any]:
    parts = [node_id, node["class_type"]]
    for name, value in sorted(node["inputs"].items(), key=_name):
        parts.append(name)
        # most values are numbers, which never count
        parts.append(_structure(value) if isinstance(value, (str, list, dict)) else None)
    return parts


def _structure(value: Any) -> Any:
    return value if is_link(value) else _models(value)


def _models(value: Any) -> Any:
    """The model files that a literal value names; `None` when it names none."""
    if isinstance(value, str):
        # only the end is looked at: a prompt may be long
        return value if value[-12:].lower().endswith(MODEL_SUFFIXES) else None
    # some nodes (LoRA stacks) keep their models in an object or a list
    if isinstance(value, dict):
        return [[name, named] for name in sorted(value) if (named := _models(value[name])) is not None] or None
    if isinstance(value, list):
        return [named for each in value if (named := _models(each)) is not None] or None
    return None
