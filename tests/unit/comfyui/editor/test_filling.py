"""An editor file that is filled with the values of a run converts to the graph that ran."""

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from comfyrelay.comfyui.editor.convert import convert_workflow
from comfyrelay.comfyui.editor.filling import MAX_EDITOR_BYTES, copy_editor_file, fill_editor_file
from comfyrelay.comfyui.editor.placeholders import put_placeholders
from comfyrelay.comfyui.graphs.graph import replace_placeholders
from comfyrelay.services.forms.describe import DescribedWorkflow, describe_graph
from tests.support.editor_files import DEFINITIONS, empty, node, save, subgraph, workflow
from tests.unit.comfyui.editor import templates

RECORDED: dict[str, Any] = json.loads(templates.EXPORTS.read_text(encoding="utf-8"))["exports"]


@cache
def definitions() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(templates.DEFINITIONS.read_text(encoding="utf-8"))
    # The recorded part does not contain which nodes are output nodes.
    return {name: {**fields, "output_node": name.startswith(("Save", "Preview"))} for name, fields in found.items()}


def other_values(described: DescribedWorkflow) -> dict[str, Any]:
    """Return a new value for each text and number, but the default of each choice, on which other inputs may depend."""
    found: dict[str, Any] = {}
    for number, fields in enumerate(described.properties):
        default = fields.get("default_value")
        if fields["type"] == "text":
            default = f"text {number}"
        elif fields["type"] == "number":
            default = number
        elif fields["type"] in ("image", "video", "audio"):
            default = f"my file {number}.png"
        found[fields["placeholder"]] = default
    return found


def filled(file: dict[str, Any], known: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the file with other values, and the graph with the same values."""
    described = describe_graph(convert_workflow(file, known), known)
    copy = copy_editor_file(file)
    assert copy is not None
    values = other_values(described)
    put_placeholders(copy, known, described.graph, list(values))
    return fill_editor_file(copy, values), replace_placeholders(described.graph, values)


@pytest.mark.parametrize("name", [name for name, export in RECORDED.items() if isinstance(export, str)])
def test_filled_template_converts_to_the_graph_that_ran(name: str) -> None:
    file = templates.load_template(name)
    result, ran = filled(file, definitions())
    again = convert_workflow(result, definitions())
    assert {node_id: again[node_id]["inputs"] for node_id in ran} == {
        node_id: node["inputs"] for node_id, node in ran.items()
    }


def test_values_by_name_are_filled() -> None:
    file = workflow([empty() | {"widgets_values": {"width": 64, "height": 48}}, save(9, 1)], [(1, 1, 0, 9, 0)])
    result, ran = filled(file, DEFINITIONS)
    assert convert_workflow(result, DEFINITIONS)["1"]["inputs"] == ran["1"]["inputs"]
    assert result["nodes"][0]["widgets_values"]["width"] == ran["1"]["inputs"]["width"] != 64


def test_value_of_a_primitive_node_is_filled_in_that_node() -> None:
    linked = node(1, "EmptyImage", [("width", "INT", 2, "width")], values=[64, 48, 1, 255])
    primitive = node(5, "PrimitiveNode", values=[96, "randomize"])
    file = workflow([primitive, linked, save(9, 1)], [(1, 1, 0, 9, 0), (2, 5, 0, 1, 0)])
    result, ran = filled(file, DEFINITIONS)
    assert result["nodes"][0]["widgets_values"] == [ran["1"]["inputs"]["width"], "randomize"]
    assert result["nodes"][1]["widgets_values"][0] == 64


def test_value_of_a_group_node_is_filled_outside_the_group() -> None:
    inside = {"nodes": [{"type": "EmptyImage", "widgets_values": [1, 2, 3, 4]}], "links": [], "external": []}
    group = node(1, "workflow>Canvas", outputs=[("IMAGE", "IMAGE")], values=[64, 48, 1, 255])
    file = workflow([group, save(9, 1)], [(1, 1, 0, 9, 0)], extra={"groupNodes": {"Canvas": inside}})
    result, ran = filled(file, DEFINITIONS)
    assert result["nodes"][0]["widgets_values"] == list(ran["1:0"]["inputs"].values())
    assert result["extra"]["groupNodes"] == {"Canvas": inside}


def uses_of_a_subgraph(count: int) -> dict[str, Any]:
    """Return a file that several times uses a subgraph, which contains another subgraph."""
    inner = subgraph("inner", [empty(7)], [(1, 7, 0, -20, 0)], [], [("IMAGE", "IMAGE", [1])])
    outer = subgraph("outer", [node(5, "inner")], [(1, 5, 0, -20, 0)], [], [("IMAGE", "IMAGE", [1])])
    holders = [node(at, "outer") for at in range(1, count + 1)]
    savers = [save(100 + at, at) for at in range(1, count + 1)]
    links = [(at, at, 0, 100 + at, 0) for at in range(1, count + 1)]
    return workflow([*holders, *savers], links, definitions={"subgraphs": [outer, inner]})


def with_widths(file: dict[str, Any], name_of: Callable[[str], str]) -> dict[str, Any]:
    """Return the file with a placeholder for the width of each node."""
    graph = convert_workflow(file, DEFINITIONS)
    names = {node_id: name_of(node_id) for node_id, entry in graph.items() if "width" in entry["inputs"]}
    for node_id, name in names.items():
        graph[node_id]["inputs"]["width"] = name
    copy = copy_editor_file(file)
    assert copy is not None
    put_placeholders(copy, DEFINITIONS, graph, list(names.values()))
    return copy


def test_each_use_of_a_subgraph_has_its_own_values() -> None:
    copy = with_widths(uses_of_a_subgraph(2), lambda node_id: f"{{{{{node_id}}}}}")
    again = convert_workflow(fill_editor_file(copy, {"{{1:5:7}}": 300, "{{2:5:7}}": 301}), DEFINITIONS)
    found = [again[node_id]["inputs"] for node_id in ("1:5:7", "2:5:7")]
    assert [(inputs["width"], inputs["height"]) for inputs in found] == [(300, 48), (301, 48)]


def test_primitive_of_two_fields_has_the_value_of_the_last() -> None:
    primitive = node(5, "PrimitiveNode", values=[96, "fixed"])
    linked = [node(at, "EmptyImage", [("width", "INT", at, "width")], values=[64, 48, 1, 255]) for at in (1, 2)]
    file = workflow([primitive, *linked], [(1, 5, 0, 1, 0), (2, 5, 0, 2, 0)])
    copy = with_widths(file, lambda node_id: f"{{{{{node_id}}}}}")
    assert copy["nodes"][0]["widgets_values"] == ["{{2}}", "fixed"]


def test_uses_with_the_same_values_share_their_subgraph() -> None:
    copy = with_widths(uses_of_a_subgraph(3), lambda _: "{{WIDTH}}")
    assert len(copy["definitions"]["subgraphs"]) == 2


def test_layout_is_kept_and_the_viewport_is_omitted() -> None:
    extra = {"ds": {"scale": 0.7, "offset": [1, 2]}, "note": "mine"}
    file = workflow([empty(pos=[10, 20]), save(9, 1)], [(1, 1, 0, 9, 0)], groups=[{"title": "Canvas"}], extra=extra)
    result, _ = filled(file, DEFINITIONS)
    assert (result["nodes"][0]["pos"], result["groups"], result["extra"]) == (
        [10, 20],
        file["groups"],
        {"note": "mine"},
    )
    assert file["extra"] == extra
    assert file["nodes"][0]["widgets_values"] == [64, 48, 1, 255]


@pytest.mark.parametrize("note", ["x" * MAX_EDITOR_BYTES, float("nan"), "\ud800"], ids=["large", "nan", "surrogate"])
def test_file_that_cannot_be_stored_with_jobs_is_omitted(note: object) -> None:
    assert copy_editor_file(workflow([empty()], extra={"note": note})) is None
