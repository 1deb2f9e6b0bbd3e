"""Hostile graphs can be described quickly, and so can ordinary graphs that once failed."""

from typing import Any

import pytest

from comfyrelay.services.forms.describe import describe_graph
from tests.support.form_graphs import definition, node


def prompted(**styler: Any) -> dict[str, Any]:
    return {
        "1": node("Styler", text="a cat", **styler),
        "2": node("KSampler", positive=["1", 0], seed=5),
        "3": node("SaveImage", images=["2", 0]),
        "9": node("Pick", v="a"),
    }


def test_linked_choice_on_the_way_to_a_prompt_is_handled() -> None:
    info = {"Styler": definition(text=["STRING"], style=[["a", "b"]]), "SaveImage": definition(output=True)}
    described = describe_graph(prompted(style=["9", 0]), info)
    assert described.roles["prompt"] == "prompt"


@pytest.mark.parametrize("value", [3, "foo", "photo.png", True])
@pytest.mark.parametrize("kind", [[1, {"a": 1}], list(range(1500)), {"x": 1}, None])
def test_input_with_an_invalid_type_is_described_by_its_value(kind: Any, value: Any) -> None:
    info = {"Draw": {"output_node": True, "input": {"required": {"a": [kind]}}}}
    described = describe_graph({"1": node("Draw", a=value)}, info)
    assert described.properties[0]["default_value"] in (value, None)


def node_of(class_type: str, inputs: dict[str, Any]) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs}


def linked(count: int, fan_out: int, class_type: str, name: str, **values: Any) -> dict[str, Any]:
    """Chain `count` nodes, link each to the next `fan_out` ones, and save the first."""
    nodes = {
        str(at): node_of(
            class_type, {f"{name}_{to - at}": [str(to), 0] for to in range(at + 1, min(at + fan_out, count))}
        )
        for at in range(count)
    }
    for linked_node in nodes.values():
        linked_node["inputs"] |= values
    return {**nodes, "saver": node("SaveImage", images=["0", 0])}


# These graphs would take minutes or hours if every part caused another traversal.


def test_input_name_may_have_many_digits() -> None:
    described = describe_graph({"1": node_of("SaveImage", {"1" * 300_000 + "a": 5})})
    assert [property_["default_value"] for property_ in described.properties] == [5]


def test_text_may_have_many_brackets() -> None:
    text = "{" * 300_000 + "DRAW_A" + "}" * 300_000
    described = describe_graph({"1": node("Draw", a=text), "2": node("SaveImage", images=["1", 0])})
    (found,) = described.properties
    assert (found["default_value"], found["placeholder"]) == (text, "{{DRAW_A_2}}")


def test_placeholder_never_occurs_in_an_existing_text() -> None:
    text = "{{DRAW_A}} {{{DRAW_A_2}}} {{X_3}} {{DRAW_A_5}}"
    described = describe_graph({"1": node("Draw", a=text), "2": node("SaveImage", images=["1", 0])})
    assert described.properties[0]["placeholder"] == "{{DRAW_A_4}}"


def test_last_of_2000_savers_is_the_result() -> None:
    graph = linked(2000, 40, "SaveImage", "images")
    assert describe_graph(graph).output_node_id == "saver"


def test_seed_with_many_paths_is_one_property() -> None:
    graph = linked(1000, 8, "Draw", "seed") | {"999": node("Draw", seed=7)}
    described = describe_graph(graph)
    assert [property_["default_value"] for property_ in described.properties] == [7]


def test_file_with_many_paths_is_one_property() -> None:
    graph = linked(1500, 25, "LoadImage", "image", image="a.png")
    described = describe_graph(graph)
    assert [property_["type"] for property_ in described.properties] == ["image"]


def test_node_with_5000_outputs_is_visited_once() -> None:
    graph = {
        "1": node_of("Draw", {f"text_{at}": "a cat" for at in range(5000)}),
        "2": node_of("Join", {f"text_{at}": ["1", at] for at in range(5000)}),
        "3": node("KSampler", positive=["2", 0]),
        "4": node("SaveImage", images=["3", 0]),
    }
    assert describe_graph(graph).roles["prompt"] == "prompt"
