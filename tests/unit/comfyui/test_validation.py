"""Graphs of clients are checked against the node definitions of workers, as ComfyUI checks them."""

from typing import Any

import pytest

from comfyrelay.comfyui.graphs.validation import validate


@pytest.mark.parametrize(("choices", "is_valid"), [(["a"], True), (["b"], False), ([], True)])
def test_value_must_be_in_the_list_unless_the_list_is_unknown(choices: list[str], is_valid: bool) -> None:
    """ComfyUI's `CustomCombo` has an empty list, because the editor defines its choices."""
    definitions: dict[str, Any] = {
        "CustomCombo": {"input": {"required": {"choice": [choices, {}]}}, "output": ["STRING"], "output_node": True}
    }
    found = validate({"1": {"class_type": "CustomCombo", "inputs": {"choice": "a"}}}, definitions)
    assert (found.error is None) is is_valid
