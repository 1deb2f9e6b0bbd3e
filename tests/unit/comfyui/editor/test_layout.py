"""A graph that is laid out as an editor file converts back to the same graph."""

import pytest

from comfyrelay.comfyui.editor.convert import convert_workflow
from comfyrelay.comfyui.editor.layout import lay_out
from comfyrelay.comfyui.graphs.graph import is_link
from tests.support.comfyui_site import painted
from tests.unit.comfyui.editor.templates import load_template
from tests.unit.comfyui.editor.test_templates import RECORDED, definitions


@pytest.mark.parametrize("name", [name for name, export in RECORDED["exports"].items() if isinstance(export, str)])
def test_laid_out_graph_of_a_template_converts_to_itself(name: str) -> None:
    graph = convert_workflow(load_template(name), definitions())
    file = lay_out(graph, definitions())
    ids = {node_id: str(node["id"]) for node_id, node in zip(graph, file["nodes"], strict=True)}
    back = convert_workflow(file, definitions())
    for node_id, node in graph.items():
        inputs = {key: [ids[value[0]], value[1]] if is_link(value) else value for key, value in node["inputs"].items()}
        assert (back[ids[node_id]]["class_type"], back[ids[node_id]]["inputs"]) == (node["class_type"], inputs)


def test_nodes_are_to_the_right_of_their_inputs() -> None:
    file = lay_out(painted("first.safetensors"), definitions())
    positions = {node["id"]: node["pos"] for node in file["nodes"]}
    assert positions[4][0] > positions[2][0] > positions[1][0]


def test_unknown_nodes_keep_their_links() -> None:
    graph = {
        "a:1": {"class_type": "Unknown", "inputs": {"text": "x"}},
        "b": {"class_type": "Other", "inputs": {"in": ["a:1", 2]}},
    }
    file = lay_out(graph, {})
    assert [node["widgets_values"] for node in file["nodes"]] == [["x"], []]
    assert file["links"] == [[1, 1, 2, 2, 0, "*"]]
    assert len(file["nodes"][0]["outputs"]) == 3


def test_links_in_a_cycle_do_not_stop_the_layout() -> None:
    graph = {name: {"class_type": "A", "inputs": {"x": [other, 0]}} for name, other in (("1", "2"), ("2", "1"))}
    assert len(lay_out(graph, {})["links"]) == 2
