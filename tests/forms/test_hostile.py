"""Graphs that are made to break what describes them, and ordinary ones that did."""

from typing import Any

import pytest

from comfyrelay.services.forms.describe import describe
from tests.forms.graphs import definition, node


def prompted(**styler: Any) -> dict[str, Any]:
    return {
        "1": node("Styler", text="a cat", **styler),
        "2": node("KSampler", positive=["1", 0], seed=5),
        "3": node("SaveImage", images=["2", 0]),
        "9": node("Pick", v="a"),
    }


def test_a_choice_that_is_listed_as_its_type_may_be_linked_on_the_way_to_a_prompt() -> None:
    info = {"Styler": definition(text=["STRING"], style=[["a", "b"]]), "SaveImage": definition(output=True)}
    described = describe(prompted(style=["9", 0]), info)
    assert described.roles["prompt"] == "prompt"


@pytest.mark.parametrize("value", [3, "foo", "photo.png", True])
@pytest.mark.parametrize("kind", [[1, {"a": 1}], list(range(1500)), {"x": 1}, None])
def test_an_input_whose_type_is_no_word_is_described_by_its_value(kind: Any, value: Any) -> None:
    info = {"Draw": {"output_node": True, "input": {"required": {"a": [kind]}}}}
    described = describe({"1": node("Draw", a=value)}, info)
    assert described.properties[0]["default_value"] in (value, None)
