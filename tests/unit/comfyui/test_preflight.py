"""Problems of a graph are found before it is sent to a server."""

from typing import Any

import pytest

from comfyrelay.comfyui.graphs.preflight import graph_problems, installed_models

KNOWN: dict[str, Any] = {
    "Load": {
        "input": {
            "required": {
                "kind": [
                    "COMFY_DYNAMICCOMBO_V3",
                    {
                        "options": [
                            {"key": "none", "inputs": {}},
                            {
                                "key": "one",
                                "inputs": {
                                    "required": {"lora_name": [["a.safetensors"], {}]},
                                    "optional": {"mode": ["COMBO", {"options": ["fast", "slow"]}]},
                                },
                            },
                        ]
                    },
                ]
            }
        },
        "output": [],
        "output_node": True,
    }
}


@pytest.mark.parametrize(
    ("inputs", "problem"),
    [
        ({"kind": "none"}, None),
        ({"kind": "one", "kind.lora_name": "a.safetensors"}, None),
        ({"kind": "one", "kind.lora_name": "a.safetensors", "kind.mode": "slow"}, None),
        ({"kind": "two"}, "'two' is not a choice of input 'kind'"),
        ({"kind": "one"}, "input 'kind.lora_name' is not connected"),
        ({"kind": "one", "kind.lora_name": "b.safetensors"}, "the model 'b.safetensors' is not installed"),
        (
            {"kind": "one", "kind.lora_name": "a.safetensors", "kind.mode": "odd"},
            "'odd' is not a choice of input 'kind.mode'",
        ),
    ],
)
def test_inputs_of_the_chosen_option_are_checked(inputs: dict[str, Any], problem: str | None) -> None:
    found = [problem.text for problem in graph_problems({"1": {"class_type": "Load", "inputs": inputs}}, KNOWN)]
    assert (found == []) if problem is None else (len(found) == 1 and problem in found[0])


def test_models_inside_an_option_are_installed_models() -> None:
    assert installed_models(KNOWN) == {"a.safetensors"}
