"""Node classes that a server replaces have definitions, so graphs that use them are accepted."""

from typing import Any

import pytest

from comfyrelay.comfyui.client.replaced_nodes import with_replaced_nodes
from comfyrelay.comfyui.graphs.policy import GraphPolicy
from comfyrelay.comfyui.graphs.preflight import graph_problems
from comfyrelay.errors import GraphNotAllowed

RESIZE = ["COMFY_DYNAMICCOMBO_V3", {"options": [{"key": "by", "inputs": {"required": {"factor": ["FLOAT", {}]}}}]}]
INSTALLED: dict[str, Any] = {
    "Scale": {
        "input": {"required": {"input": ["IMAGE"], "resize": RESIZE, "method": [["area", "lanczos"]]}},
        "output": ["IMAGE", "MASK"],
        "output_name": ["image", "mask"],
        "output_is_list": [False, False],
        "output_node": True,
    }
}
MAPPED = {
    "new_node_id": "Scale",
    "old_widget_ids": ["scaler", "scale_by"],
    "input_mapping": [
        {"new_id": "input", "old_id": "image"},
        {"new_id": "resize", "set_value": "by"},
        {"new_id": "resize.factor", "old_id": "scale_by"},
        {"new_id": "method", "old_id": "scaler"},
    ],
    "output_mapping": [{"old_idx": 0, "new_idx": 1}],
}


def test_replaced_class_has_its_old_inputs_and_outputs() -> None:
    found = with_replaced_nodes(INSTALLED, {"ScaleBy": [MAPPED]})
    assert list(found) == ["Scale", "ScaleBy"]
    old = found["ScaleBy"]["input"]["required"]
    assert list(old) == ["image", "scaler", "scale_by"]
    assert (old["scale_by"], old["scaler"]) == (["FLOAT", {}], [["area", "lanczos"]])
    assert (found["ScaleBy"]["output"], found["ScaleBy"]["output_name"]) == (["MASK"], ["mask"])
    graph = {"1": {"class_type": "ScaleBy", "inputs": {"image": ["1", 0], "scale_by": 2.0, "scaler": "nearest"}}}
    [problem] = graph_problems(graph, found)
    assert "'nearest' is not a choice of input 'scaler'" in problem.text


def test_renamed_class_has_the_definition_of_the_new_one() -> None:
    renamed = {"new_node_id": "Scale", "old_widget_ids": None, "input_mapping": None, "output_mapping": None}
    found = with_replaced_nodes(INSTALLED, {"Scale ": [renamed]})
    assert found["Scale "] == {**INSTALLED["Scale"], "name": "Scale ", "replaced_by": "Scale"}


def test_policy_judges_the_class_that_runs() -> None:
    found = with_replaced_nodes(INSTALLED, {"Harmless": [{"new_node_id": "Scale"}]})
    policy = GraphPolicy(mode="deny", denied=("Scale",))
    graph = {"1": {"class_type": "Harmless", "inputs": {}}}
    with pytest.raises(GraphNotAllowed, match="Harmless"):
        policy.check(graph, own=(), object_info=found)


@pytest.mark.parametrize(
    "replacements",
    [
        {"Scale": [MAPPED]},
        {"Old": []},
        {"Old": [5]},
        {"Old": {"new_node_id": "Scale"}},
        {"Old": [{"new_node_id": ["Scale"]}]},
        {"Old": [{"new_node_id": "Unknown"}]},
    ],
)
def test_replacements_of_another_shape_are_ignored(replacements: dict[str, Any]) -> None:
    assert with_replaced_nodes(INSTALLED, replacements) == INSTALLED
