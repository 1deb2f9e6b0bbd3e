"""The form of ComfyUI's app view is read from the editor file and mapped to the converted graph."""

from typing import Any

import pytest

from comfyrelay.comfyui.editor.app_view import read_app_view
from comfyrelay.comfyui.editor.workflow import AppView
from tests.support.editor_files import DEFINITIONS, Slot, empty, node, save, subgraph, workflow

INNER = "an-inner"
FILE_ID = "5e0c9a52-66a4-4f5b-8a0e-7c8f3c3f4a11"


def app(inputs: Any = (), outputs: Any = (), *, nodes: list[Any], links: list[Any], **more: Any) -> AppView:
    stored = {"linearData": {"inputs": list(inputs), "outputs": list(outputs)}}
    return read_app_view(workflow(nodes, links, extra=stored, **more), DEFINITIONS)


def plain(inputs: Any = (), outputs: Any = ()) -> AppView:
    return app(inputs, outputs, nodes=[empty(), save(9, 1)], links=[(1, 1, 0, 9, 0)])


def shown(view: AppView) -> list[tuple[str, list[str]]]:
    return [(field.label, [".".join(position) for position in field.inputs]) for field in view.fields]


def scaled(**more: Any) -> dict[str, Any]:
    """Return a subgraph whose inputs show the factor and the method of two nodes inside."""
    slots: list[Slot] = [("image", "IMAGE", 1), ("scale_by", "FLOAT", 11, "scale_by")]
    nodes = [
        node(7, "ImageScaleBy", slots, values=["area", 2.0]),
        node(8, "ImageScaleBy", [("image", "IMAGE", 3), ("scale_by", "FLOAT", 12, "scale_by")], values=["area", 4.0]),
    ]
    links = [(1, -10, 0, 7, 0), (11, -10, 1, 7, 1), (12, -10, 1, 8, 1), (3, 7, 0, 8, 0), (2, 8, 0, -20, 0)]
    ports = [("image", "IMAGE", [1]), ("scale_by", "FLOAT", [11, 12])]
    return {**subgraph(INNER, nodes, links, ports, [("IMAGE", "IMAGE", [2])]), **more}


def used(inputs: Any, outputs: Any = (), *, uses: tuple[int, ...] = (5,), **more: Any) -> AppView:
    """Return a chain of subgraphs between an image and a saver."""
    chain = [1, *uses, 9]
    links = [(number, chain[number - 1], 0, chain[number], 0) for number in range(1, len(chain))]
    slots = [("scale_by", "FLOAT", None, "scale_by")]
    nodes = [node(use, INNER, [("image", "IMAGE", number), *slots], **more) for number, use in enumerate(uses, 1)]
    nodes = [empty(), *nodes, save(9, len(uses) + 1)]
    return app(inputs, outputs, nodes=nodes, links=links, definitions={"subgraphs": [scaled()]})


def test_fields_have_the_order_of_the_author_and_the_names_of_the_editor() -> None:
    view = plain([["1", "height"], [1, "width", {"height": 40}]], [9])
    assert shown(view) == [("height", ["1.height"]), ("width", ["1.width"])]
    assert view.outputs == ["9"]


def test_renamed_input_has_the_label_of_the_author() -> None:
    slot = {"name": "width", "type": "INT", "link": None, "widget": {"name": "width"}, "label": "Breadth"}
    view = app([[1, "width"]], nodes=[empty() | {"inputs": [slot]}, save(9, 1)], links=[(1, 1, 0, 9, 0)])
    assert shown(view) == [("Breadth", ["1.width"])]


def test_input_without_a_new_name_has_its_displayed_name() -> None:
    definition = {"input": {"required": {"n": ["INT", {"display_name": "Number"}]}}, "output": [], "output_node": True}
    file = workflow([node(1, "Counter", values=[3])], extra={"linearData": {"inputs": [[1, "n"]]}})
    assert shown(read_app_view(file, {"Counter": definition})) == [("Number", ["1.n"])]


def test_widget_id_names_the_node_and_the_widget() -> None:
    assert shown(plain([[f"{FILE_ID}:1:wid%74h", "old name"]])) == [("width", ["1.width"])]


@pytest.mark.parametrize(
    "inputs",
    [
        [
            ["77", "width"],
            [1, "gone"],
            [None, "width"],
            ["1"],
            5,
            {},
            [f"{FILE_ID}:77:width", "width"],
            ["a:b:c:d", "x"],
        ],
        5,
        None,
        "text",
        {"0": [1, "width"]},
    ],
)
def test_entries_that_do_not_exist_are_skipped(inputs: Any) -> None:
    stored = {"linearData": {"inputs": inputs, "outputs": [77, None, {}, [9]]}}
    file = workflow([empty(), save(9, 1)], [(1, 1, 0, 9, 0)], extra=stored)
    assert read_app_view(file, DEFINITIONS) == AppView(fields=[], outputs=[])


@pytest.mark.parametrize("extra", [None, [], {"linearData": None}, {"linearData": {}}, {"linearMode": True}])
def test_file_without_an_app_view_has_no_form(extra: Any) -> None:
    assert read_app_view(workflow([empty()], extra=extra), DEFINITIONS) == AppView()


def test_each_field_is_listed_once() -> None:
    assert len(plain([["1", "width"], [1, "width"]], [9, "9"]).fields) == 1


def test_field_that_a_link_sets_is_skipped() -> None:
    scale = node(2, "ImageScaleBy", [("image", "IMAGE", 1), ("scale_by", "FLOAT", 2, "scale_by")], values=["area", 2.0])
    links = [(1, 1, 0, 2, 0), (2, 3, 0, 2, 1), (3, 2, 0, 9, 0)]
    nodes = [empty(), scale, node(3, "PrimitiveFloat", values=[1.5]), save(9, 3)]
    view = app([[2, "scale_by"], [2, "upscale_method"], [3, "value"]], nodes=nodes, links=links)
    assert shown(view) == [("upscale_method", ["2.upscale_method"]), ("value", ["3.value"])]


def test_field_of_a_muted_node_is_skipped() -> None:
    muted = empty(2) | {"mode": 2}
    view = app([[2, "width"], [1, "width"]], nodes=[empty(), muted, save(9, 1)], links=[(1, 1, 0, 9, 0)])
    assert shown(view) == [("width", ["1.width"])]


def test_primitive_node_sets_every_input_that_it_is_linked_to() -> None:
    slots = [("width", "INT", 2, "width"), ("height", "INT", 3, "height")]
    nodes = [empty() | {"inputs": node(1, "x", slots)["inputs"]}, node(4, "PrimitiveNode", values=[32, "fixed"])]
    view = app([[4, "value"]], nodes=[*nodes, save(9, 1)], links=[(1, 1, 0, 9, 0), (2, 4, 0, 1, 0), (3, 4, 0, 1, 1)])
    assert shown(view) == [("value", ["1.width", "1.height"])]


@pytest.mark.parametrize("entry", [[5, "scale_by"], [f"{FILE_ID}:5:scale_by", "x"], [f"{INNER}:5", "scale_by"]])
def test_field_of_a_subgraph_sets_the_inputs_inside(entry: Any) -> None:
    assert shown(used([entry], values=[3.0])) == [("scale_by", ["5:7.scale_by", "5:8.scale_by"])]


def test_older_entry_names_the_node_inside_a_subgraph() -> None:
    assert shown(used([["7", "scale_by"]], values=[3.0])) == [("scale_by", ["5:7.scale_by", "5:8.scale_by"])]


@pytest.mark.parametrize("values", [[], [3.0]], ids=["inner value", "own value"])
def test_field_belongs_to_one_use_of_a_subgraph(values: list[float]) -> None:
    view = used([[6, "scale_by"], ["7", "scale_by"]], uses=(5, 6), values=values)
    assert shown(view) == [("scale_by", ["6:7.scale_by", "6:8.scale_by"])], "an ambiguous entry is skipped"


def test_field_that_a_subgraph_shows_without_an_input_is_found() -> None:
    proxies = {"proxyWidgets": [["7", "upscale_method"]]}
    entries = [[5, "upscale_method"], ["7", "upscale_method"], ["8", "upscale_method"]]
    for entry, found in zip(entries, [True, True, False], strict=True):
        view = used([entry], properties=proxies)
        assert shown(view) == ([("upscale_method", ["5:7.upscale_method"])] if found else [])


def test_output_inside_a_subgraph_is_found() -> None:
    assert used([], [9, 8]).outputs == ["9", "5:8"]
