"""Texts of a guest follow the policy for tenants, even on a desk, which has no policy for its owner."""

from typing import Any

import pytest

from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.graphs.policy import GraphPolicy
from comfyrelay.domain.properties import Property, PropertyType, defaults, resolve
from comfyrelay.errors import InvalidInput
from comfyrelay.services.jobs.submission.guest_inputs import REFUSED_TEXT, GuestInputs

PROPERTIES = [
    Property(key="text", type=PropertyType.TEXT, placeholder="{{TEXT}}", user_configurable=True),
    Property(
        key="out",
        type=PropertyType.TEXT,
        placeholder="{{OUT}}",
        default_value="/home/me/out",
        user_configurable=True,
    ),
    Property(
        key="place",
        type=PropertyType.CHOICE,
        placeholder="{{PLACE}}",
        choices=["/mnt/a", "/mnt/b"],
        user_configurable=True,
    ),
]


def node(class_type: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs}


def refused_keys(graph: Graph, **values: Any) -> set[str]:
    inputs = GuestInputs(GraphPolicy(mode="off"), graph, PROPERTIES)
    try:
        inputs.check(resolve(PROPERTIES, overrides={}, user_input=values), defaults(PROPERTIES, {}))
    except InvalidInput as error:
        return {key for key, text in error.errors.items() if text == REFUSED_TEXT}
    return set()


SAVER = {"1": node("Saver", output_path="{{OUT}}", caption="{{TEXT}}", place="{{PLACE}}")}


@pytest.mark.parametrize("text", ["/home/me/.config/autostart", "autostart", "https://attacker.example", "../x"])
def test_guest_cannot_change_a_path_of_the_owner(text: str) -> None:
    assert refused_keys(SAVER, out=text, text="a cat") == {"out"}


def test_path_in_any_text_of_a_guest_is_refused() -> None:
    assert refused_keys(SAVER, text="/etc/passwd") == {"text"}


def test_defaults_and_choices_of_the_owner_are_accepted() -> None:
    assert refused_keys(SAVER) == set()
    assert refused_keys(SAVER, out="/home/me/out", place="/mnt/b", text="a cat and/or a dog") == set()


def test_guest_cannot_write_code() -> None:
    graph = {"1": node("RunPython", code="{{TEXT}}")}
    assert refused_keys(graph, text="print(1)") == {"text"}


def test_text_that_reaches_a_path_through_links_is_refused() -> None:
    graph = {
        "1": node("PrimitiveString", value="{{TEXT}}"),
        "2": node("StringConcatenate", string_a=["1", 0], string_b=".sh"),
        "3": node("Saver", output_path=["2", 0]),
    }
    assert refused_keys(graph, text="autostart") == {"text"}


def test_prompt_does_not_count_as_the_path_of_a_later_node() -> None:
    graph = {
        "1": node("CheckpointLoaderSimple", ckpt_name="a.safetensors"),
        "2": node("PrimitiveString", value="{{TEXT}}"),
        "3": node("CLIPTextEncode", text=["2", 0], clip=["1", 1]),
        "4": node("KSampler", positive=["3", 0], model=["1", 0]),
        "5": node("RunPython", image=["4", 0], code="x = 1"),
        "6": node("Saver", images=["4", 0], output_path="/home/me/out"),
    }
    assert refused_keys(graph, text="a cat") == set()
