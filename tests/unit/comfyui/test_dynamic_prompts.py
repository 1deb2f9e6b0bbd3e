"""Prompts with choices are drawn for each run, as ComfyUI's editor does."""

from collections import Counter
from typing import Any

import pytest

from comfyrelay.comfyui.graphs.dynamic_prompts import MAX_DEPTH, draw_prompt, draw_prompts
from comfyrelay.errors import InvalidInput
from comfyrelay.services.forms.describe import describe_graph


def prompt_node(text: str, *dynamic: str) -> dict[str, Any]:
    meta = {"title": "Prompt", **({"dynamic_prompts": list(dynamic)} if dynamic else {})}
    return {"class_type": "CLIPTextEncode", "inputs": {"text": text, "clip": ["9", 1]}, "_meta": meta}


def test_marked_prompts_are_drawn_for_each_run() -> None:
    graph = {"1": prompt_node("a {red|blue} fox", "text"), "2": prompt_node("a {red|blue} fox")}
    drawn = [draw_prompts(graph) for _ in range(100)]
    assert set(Counter(run["1"]["inputs"]["text"] for run in drawn)) == {"a red fox", "a blue fox"}
    assert {run["2"]["inputs"]["text"] for run in drawn} == {"a {red|blue} fox"}


def test_drawn_prompts_are_not_drawn_again() -> None:
    once = draw_prompts({"1": prompt_node(r"{an|an} owl \{a|b\}", "text")})
    assert once["1"]["_meta"] == {"title": "Prompt"}
    assert draw_prompts(once)["1"]["inputs"]["text"] == "an owl {a|b}"


@pytest.mark.parametrize("meta", [None, "text", {"dynamic_prompts": "text"}, {"dynamic_prompts": [1, "clip", "gone"]}])
def test_marks_of_another_shape_are_ignored(meta: object) -> None:
    node = {**prompt_node("{a|b}"), "_meta": meta}
    assert draw_prompts({"1": node}) == {"1": node}


def test_braces_that_are_nested_too_deep_are_refused() -> None:
    with pytest.raises(InvalidInput, match=f"more than {MAX_DEPTH} deep"):
        draw_prompt("{a|" * (MAX_DEPTH + 1))


def test_half_of_a_surrogate_pair_is_kept() -> None:
    """Some programs truncate texts in the middle of a character."""
    assert draw_prompt("\ud800 {owl|owl}") == "\ud800 owl"


def test_property_of_a_dynamic_prompt_has_the_mark_of_its_input() -> None:
    graph = {
        "1": prompt_node("a {red|blue} fox", "text"),
        "3": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "a"}},
        "9": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "a.safetensors"}},
    }
    described = describe_graph(graph)
    [prompt] = [fields for fields in described.properties if fields.get("is_dynamic_prompt")]
    assert prompt["default_value"] == "a {red|blue} fox"
    assert described.graph["1"]["_meta"] == {"title": "Prompt"}
