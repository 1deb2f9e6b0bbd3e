"""The workflow hash decides which graphs count as the same workflow."""

import json
import random
import re
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comfyrelay.comfyui.graphs.graph import Graph, replace_placeholders
from comfyrelay.comfyui.graphs.hash import workflow_hash

GRAPH: Graph = {
    "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "sdxl/base.safetensors"}},
    "2": {
        "class_type": "CLIPTextEncode",
        "inputs": {"text": "a cat", "clip": ["1", 1]},
        "_meta": {"title": "Yes"},
    },
    "3": {
        "class_type": "KSampler",
        "inputs": {"seed": 1, "cfg": 7.5, "model": ["1", 0], "positive": ["2", 0]},
    },
    "4": {
        "class_type": "Stack",
        "inputs": {"lora": {"on": True, "lora": "a.safetensors"}, "list": ["x", "b.GGUF"]},
    },
}


def changed(node_id: str, name: str, value: object) -> Graph:
    graph = deepcopy(GRAPH)
    graph[node_id]["inputs"][name] = value
    return graph


def shuffled(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    items = [(key, shuffled(part)) for key, part in value.items()]
    random.Random(7).shuffle(items)
    return dict(items)


def test_workflow_hash_is_a_stable_sha256_hex_digest() -> None:
    assert re.fullmatch(r"[0-9a-f]{64}", workflow_hash(GRAPH))
    assert workflow_hash(GRAPH) == "058dacc50544fc453ae6db13da83744786d032cc01e6779f0c9eaaf21f59e60d"


@pytest.mark.parametrize(
    ("node_id", "name", "value"),
    [
        ("2", "text", 'another "prompt"\n🐈'),
        ("3", "seed", 2),
        ("3", "cfg", 1),
        ("4", "lora", {"on": False, "lora": "a.safetensors"}),
        ("4", "list", ["y", "b.GGUF"]),
    ],
)
def test_prompts_seeds_and_numbers_do_not_change_the_hash(node_id: str, name: str, value: object) -> None:
    assert workflow_hash(changed(node_id, name, value)) == workflow_hash(GRAPH)


@pytest.mark.parametrize(
    ("node_id", "name", "value"),
    [
        ("1", "ckpt_name", "sdxl/other.safetensors"),
        ("1", "ckpt_name", "sdxl\\base.safetensors"),
        ("1", "ckpt_name", "base.CKPT"),
        ("2", "clip", ["1", 0]),
        ("2", "clip", ["3", 1]),
        ("2", "clip", "a text"),
        ("2", "text", ["3", 0]),
        ("3", "new_input", 1),
        ("4", "lora", {"on": True, "lora": "b.safetensors"}),
        ("4", "list", ["x", "c.GGUF"]),
    ],
)
def test_links_input_names_and_model_files_change_the_hash(node_id: str, name: str, value: object) -> None:
    assert workflow_hash(changed(node_id, name, value)) != workflow_hash(GRAPH)


@pytest.mark.parametrize(
    "suffix",
    [
        *("safetensors", "sft", "ckpt", "pt", "pth", "bin", "gguf", "onnx", "SafeTensors", "ONNX"),
        *("vae", "yaml", "yml", "YAML"),
    ],
)
def test_model_file_is_recognized_by_its_suffix(suffix: str) -> None:
    assert workflow_hash(changed("3", "x", f"a.{suffix}")) != workflow_hash(changed("3", "x", f"b.{suffix}"))


def test_class_types_and_node_ids_change_the_hash() -> None:
    other_class = deepcopy(GRAPH)
    other_class["3"]["class_type"] = "KSamplerAdvanced"
    other_id = {("5" if node_id == "4" else node_id): node for node_id, node in GRAPH.items()}
    assert len({workflow_hash(GRAPH), workflow_hash(other_class), workflow_hash(other_id)}) == 3


def test_titles_and_key_order_do_not_change_the_hash() -> None:
    without_titles = {node_id: {k: v for k, v in node.items() if k != "_meta"} for node_id, node in GRAPH.items()}
    assert workflow_hash(without_titles) == workflow_hash(GRAPH)
    assert workflow_hash(shuffled(GRAPH)) == workflow_hash(GRAPH)


@given(st.text().filter(lambda text: "." not in text))
def test_replaced_prompt_does_not_change_the_hash(prompt: str) -> None:
    template = changed("2", "text", "PROMPT")
    graph = replace_placeholders(template, {"PROMPT": prompt})
    assert workflow_hash(graph) == workflow_hash(template)
    assert workflow_hash(json.loads(json.dumps(graph))) == workflow_hash(template)
