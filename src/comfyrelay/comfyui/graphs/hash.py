"""Workflow hash: equal for graphs that need the same nodes and models, independent of their prompts."""

import hashlib
import json
from operator import itemgetter
from typing import Any

from comfyrelay.comfyui.graphs.graph import Graph, is_link

MODEL_SUFFIXES = (
    *(".safetensors", ".sft", ".ckpt", ".pt", ".pt2", ".pth", ".bin", ".gguf", ".ggml", ".onnx"),
    *(".engine", ".trt", ".pkl", ".pickle", ".npz", ".torchscript", ".tflite", ".task", ".nemo"),
)
# Other files that affect the result of a graph: VAEs of older versions, and model configurations.
_COUNTED_SUFFIXES = (*MODEL_SUFFIXES, ".vae", ".yaml", ".yml")
_name = itemgetter(0)
# One encoder for all calls: json.dumps with separators creates an encoder per call.
_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def workflow_hash(graph: Graph) -> str:
    """Return the SHA-256 of a graph's structure, in hexadecimal.

    Node ids, `class_type`, links, input names and the names of model files and their configurations count. Prompts,
    seeds, sizes, titles and key order do not.
    """
    nodes = [_node(node_id, graph[node_id]) for node_id in sorted(graph)]
    # JSON instead of repr: the hash must be the same in every Python version.
    return hashlib.sha256(_encode(nodes).encode()).hexdigest()


def _node(node_id: str, node: dict[str, Any]) -> list[Any]:
    parts = [node_id, node["class_type"]]
    for name, value in sorted(node["inputs"].items(), key=_name):
        parts.append(name)
        # Most values are numbers, which are never part of the hash.
        parts.append(_structure(value) if isinstance(value, (str, list, dict)) else None)
    return parts


def _structure(value: Any) -> Any:
    return value if is_link(value) else _models(value)


def _models(value: Any) -> Any:
    """Return the model and configuration files that a literal value names, or `None` if there are none."""
    if isinstance(value, str):
        # Check only the end: a prompt may be long.
        return value if value[-12:].lower().endswith(_COUNTED_SUFFIXES) else None
    # Some nodes (LoRA stacks) keep their models in an object or a list.
    if isinstance(value, dict):
        return [[name, named] for name in sorted(value) if (named := _models(value[name])) is not None] or None
    if isinstance(value, list):
        return [named for part in value if (named := _models(part)) is not None] or None
    return None
