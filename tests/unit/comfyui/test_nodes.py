"""Nodes are found, inputs are set, and the names in a graph are listed."""

import pytest

from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.graphs.nodes import (
    files_in,
    find_node,
    models_in,
    output_nodes,
    set_input,
    title_of,
    with_prefix,
)
from comfyrelay.errors import GraphError


def graph() -> Graph:
    return {
        "1": {"class_type": "LoadImage", "inputs": {"image": "in/cat.PNG [input]"}, "_meta": {"title": "Start image"}},
        "2": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "sd/base.safetensors"}},
        "3": {"class_type": "CLIPTextEncode", "inputs": {"text": "a cat on a mat.\nlike in cat.png", "clip": ["2", 1]}},
        "4": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}},
        "5": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "holiday/cat"}},
    }


def test_node_is_found_by_id_or_title() -> None:
    assert find_node(graph(), "1") == "1"
    assert find_node(graph(), "Start image") == "1"
    # The title of a node without one is the name of its class.
    assert find_node(graph(), "SaveImage") == "5"
    assert title_of(graph(), "5") == "SaveImage"


def test_id_takes_precedence_over_a_title() -> None:
    named = graph() | {"6": {"class_type": "SaveImage", "inputs": {}, "_meta": {"title": "1"}}}
    assert find_node(named, "1") == "1"


def test_missing_or_ambiguous_node_is_an_error() -> None:
    with pytest.raises(GraphError, match='no node with the id or title "Sampler"'):
        find_node(graph(), "Sampler")
    twice = graph() | {"6": {"class_type": "SaveImage", "inputs": {}}}
    with pytest.raises(GraphError, match=r"Several nodes .* \(5, 6\): use an id"):
        find_node(twice, "SaveImage")


def test_input_is_set_by_title() -> None:
    changed = graph()
    set_input(changed, "Start image", "image", "dog.png")
    assert changed["1"]["inputs"]["image"] == "dog.png"


def test_models_and_files_are_listed_with_their_inputs() -> None:
    assert [(model.node_id, model.input, model.name) for model in models_in(graph())] == [
        ("2", "ckpt_name", "sd/base.safetensors")
    ]
    # A prompt of two lines is not a file, even if it ends like one.
    assert [(file.node_id, file.class_type, file.name) for file in files_in(graph())] == [
        ("1", "LoadImage", "in/cat.PNG [input]")
    ]


def test_output_nodes_are_known_from_the_server_or_guessed() -> None:
    assert output_nodes(graph(), {"SaveImage": {"output_node": True}, "LoadImage": {"output_node": False}}) == ["5"]
    # Without definitions, these are nodes that save, preview or have no consumer.
    assert output_nodes(graph()) == ["3", "4", "5"]


def test_each_run_saves_into_its_own_folder() -> None:
    before = graph()
    after = with_prefix(before, "job-7")
    assert after["5"]["inputs"]["filename_prefix"] == "job-7/cat"
    assert before["5"]["inputs"]["filename_prefix"] == "holiday/cat"
    assert after["4"] == before["4"]


@pytest.mark.parametrize("prefix", ["../../etc/cron", "..", "a/..", "C:\\x\\..\\y", "", "/"])
def test_prefix_cannot_escape_the_folder(prefix: str) -> None:
    wild: Graph = {"1": {"class_type": "SaveImage", "inputs": {"filename_prefix": prefix}}}
    new_prefix = with_prefix(wild, "job")["1"]["inputs"]["filename_prefix"]
    assert new_prefix.startswith("job/")
    assert ".." not in new_prefix
    assert new_prefix.count("/") == 1


def test_linked_prefix_is_not_changed() -> None:
    linked: Graph = {"1": {"class_type": "SaveImage", "inputs": {"filename_prefix": ["2", 0]}}}
    assert with_prefix(linked, "job") == linked
