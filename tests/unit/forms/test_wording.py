"""A form has a sensible order and clear labels, and chained samplers share their steps."""

import json
import re
from copy import deepcopy
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comfyrelay.comfyui.editor.convert import convert_workflow
from comfyrelay.comfyui.graphs.graph import Graph, replace_placeholders
from comfyrelay.desk.startup.first_start import PRESETS
from comfyrelay.domain.payloads import text_values
from comfyrelay.domain.properties import Property, Role, apply_preset, resolve
from comfyrelay.errors import ComfyError
from comfyrelay.services.forms.describe import DescribedWorkflow, describe_graph
from comfyrelay.text import printable
from tests.support.form_graphs import ALL, OBJECT_INFO, SDXL, VIDEO_TO_VIDEO, WAN, WAN_22, node
from tests.unit.comfyui.editor.templates import DEFINITIONS, templates

TEMPLATES = dict(templates())


def properties_of(described: DescribedWorkflow) -> list[Property]:
    return [Property.from_json(property_) for property_ in described.properties]


def labels(described: DescribedWorkflow) -> list[str]:
    return [property_["label"] for property_ in described.properties]


def first(described: DescribedWorkflow) -> list[str]:
    return [property_["label"] for property_ in described.properties if "role" in property_]


def changed(graph: Graph, node_id: str, **inputs: Any) -> Graph:
    copy = deepcopy(graph)
    copy[node_id]["inputs"].update(inputs)
    return copy


def run_with(described: DescribedWorkflow, values: dict[str, Any]) -> Graph:
    found = resolve(properties_of(described), overrides={}, user_input=values)
    return replace_placeholders(described.graph, text_values(found))


@cache
def template(name: str) -> DescribedWorkflow:
    return describe_graph(convert_workflow(TEMPLATES[name], definitions()))


@cache
def definitions() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DEFINITIONS.read_text(encoding="utf-8"))
    return found


class TestOrder:
    def test_most_changed_properties_come_first(self) -> None:
        assert first(describe_graph(WAN, OBJECT_INFO)) == [
            *("Prompt", "Negative prompt", "Image", "Seed", "Width", "Height"),
            *("Length in frames", "Steps", "Text encoder", "Diffusion model", "VAE", "Seed, second sampler"),
        ]

    def test_roles_are_in_one_order_in_every_graph(self) -> None:
        order = list(Role)
        for graph in ALL.values():
            roles = [
                property_.role
                for property_ in properties_of(describe_graph(graph, OBJECT_INFO))
                if property_.role is not None
            ]
            while roles[-1] is Role.SEED and roles.count(Role.SEED) > 1:
                # Seeds of samplers that add no noise are last.
                roles.pop()
            assert roles == sorted(roles, key=order.index)

    def test_other_properties_follow_the_node_order(self) -> None:
        groups = [
            property_["group"]
            for property_ in describe_graph(WAN_22, OBJECT_INFO).properties
            if "role" not in property_
        ]
        found = list(dict.fromkeys(groups))
        assert found.index("Model sampling SD3 (high noise)") < found.index("High-noise sampler")
        assert found.index("High-noise sampler") < found.index("Low-noise sampler") < found.index("Create video")
        # the settings of a node are adjacent
        assert [name for name, before in zip(groups, [None, *groups], strict=False) if name != before] == found

    def test_denoise_strength_is_prominent_for_image_inputs(self) -> None:
        assert "Denoise strength" in first(describe_graph(VIDEO_TO_VIDEO, OBJECT_INFO))
        assert "Denoise strength" not in first(describe_graph(SDXL, OBJECT_INFO))
        assert "Denoise strength" in labels(describe_graph(SDXL, OBJECT_INFO))


class TestLabels:
    def test_samplers_are_named_by_their_noise_level(self) -> None:
        found = labels(describe_graph(WAN_22, OBJECT_INFO))
        assert {"CFG, high-noise sampler", "CFG, low-noise sampler", "Switch to low-noise sampler at step"} <= set(
            found
        )
        assert {"Diffusion model, high noise", "Diffusion model, low noise"} <= set(found)

    def test_samplers_of_one_model_are_counted(self) -> None:
        found = labels(describe_graph(WAN, OBJECT_INFO))
        assert {"CFG, first sampler", "CFG, second sampler", "Switch to second sampler at step"} <= set(found)

    def test_author_title_takes_precedence(self) -> None:
        graph = deepcopy(WAN)
        graph["85"]["_meta"]["title"] = "Polish"
        graph["86"]["_meta"]["title"] = "KSampler (Advanced) - DRAFT"
        info = {
            **OBJECT_INFO,
            "KSamplerAdvanced": {**OBJECT_INFO["KSamplerAdvanced"], "display_name": "KSampler (Advanced)"},
        }
        described = describe_graph(graph, info)
        assert {"CFG, Polish", "CFG, draft sampler", "Switch to Polish at step"} <= set(labels(described))
        assert {"Polish", "KSampler (Advanced) - DRAFT"} <= {property_["group"] for property_ in described.properties}

    def test_ambiguous_value_has_the_title_of_its_node(self) -> None:
        graph = {
            **SDXL,
            "30": node("PrimitiveFloat", "Zoom", value=1.5),
            "9": node("SaveImage", images=["8", 0], x=["30", 0]),
        }
        assert "Zoom" in labels(describe_graph(graph, OBJECT_INFO))

    def test_images_are_labelled_by_their_use(self) -> None:
        graph = changed({**WAN, "1": node("LoadImage", image="end.png")}, "98", end_image=["1", 0])
        assert first(describe_graph(graph, OBJECT_INFO))[2:4] == ["First frame", "Last frame"]

    def test_template_labels_use_the_titles_of_the_author(self) -> None:
        found = template("sdxl_refiner_prompt_example.json")
        assert first(found) == [
            *("Prompt", "Negative prompt", "Seed", "Width", "Height", "Steps"),
            *("Checkpoint, Load Checkpoint - BASE", "Checkpoint, Load Checkpoint - REFINER"),
            "Seed, KSampler (Advanced) - REFINER",
        ]

    @pytest.mark.parametrize("name", TEMPLATES)
    def test_no_template_has_two_equal_labels_or_one_with_an_id(self, name: str) -> None:
        try:
            described = template(name)
        except ComfyError:
            # this template needs nodes that the recorded server does not have
            return
        found = labels(described)
        assert len(set(found)) == len(found)
        ids = {node_id for node_id in described.graph if len(node_id) > 1}
        assert not [label for label in found if ids & set(re.split(r"\W+", label)) or "_" in label]

    @given(
        st.lists(
            st.text(max_size=30) | st.sampled_from(["Sampler", "sampler 2", "", "KSampler"]), min_size=3, max_size=3
        )
    )
    def test_labels_are_distinct_single_lines_for_any_title(self, titles: list[str]) -> None:
        graph = deepcopy(WAN)
        for node_id, title in zip(("85", "86", "98"), titles, strict=True):
            graph[node_id]["_meta"]["title"] = title
        described = describe_graph(graph, OBJECT_INFO)
        found = labels(described)
        assert len({label.casefold() for label in found}) == len(found)
        assert all(text == printable(text).strip() != "" and len(text) <= 200 for text in [*found, *_groups(described)])


def _groups(described: DescribedWorkflow) -> list[str]:
    return [property_["group"] for property_ in described.properties]


class TestChains:
    def test_chained_samplers_share_their_steps_and_borders_follow(self) -> None:
        described = describe_graph(WAN_22, OBJECT_INFO)
        graph = run_with(described, {"steps": 8})
        one, other = graph["57"]["inputs"], graph["58"]["inputs"]
        assert [inputs["steps"] for inputs in (one, other)] == [8, 8]
        assert (one["start_at_step"], one["end_at_step"]) == (0, 4)
        assert (other["start_at_step"], other["end_at_step"]) == (4, 10_000)

    @pytest.mark.parametrize(
        ("preset", "steps", "border"), [("look-dev", 8, 4), ("medium", 16, 8), ("production", 30, 15)]
    )
    def test_preset_applies_to_both_samplers(self, preset: str, steps: int, border: int) -> None:
        described = describe_graph(WAN_22, OBJECT_INFO)
        applied = apply_preset(PRESETS[preset], properties_of(described))
        graph = run_with(described, dict(applied.values))
        assert [graph[node_id]["inputs"]["steps"] for node_id in ("57", "58")] == [steps, steps]
        assert (graph["57"]["inputs"]["end_at_step"], graph["58"]["inputs"]["start_at_step"]) == (border, border)
        assert graph["59"]["inputs"]["length"] == PRESETS[preset]["length"]
        assert applied.ignored == ["megapixels", "profile"]

    def test_preset_sets_the_steps_of_samplers_that_differ(self) -> None:
        described = describe_graph(
            changed(changed(WAN_22, "58", steps=30, start_at_step=15), "57", steps=20), OBJECT_INFO
        )
        graph = run_with(described, dict(apply_preset(PRESETS["look-dev"], properties_of(described)).values))
        assert [graph[node_id]["inputs"]["steps"] for node_id in ("57", "58")] == [8, 8]
        assert (graph["57"]["inputs"]["end_at_step"], graph["58"]["inputs"]["start_at_step"]) == (4, 4)
        assert {"Steps, high-noise sampler", "Steps, low-noise sampler"} <= set(labels(described))

    def test_steps_from_one_node_are_one_property_and_borders_follow(self) -> None:
        graph = {**WAN_22, "90": node("PrimitiveInt", "Total", value=20), "91": node("PrimitiveInt", value=10)}
        for node_id, border in (("57", "end_at_step"), ("58", "start_at_step")):
            graph = changed(graph, node_id, steps=["90", 0], **{border: ["91", 0]})
        filled = run_with(describe_graph(graph, OBJECT_INFO), {"steps": 6})
        assert (filled["90"]["inputs"]["value"], filled["91"]["inputs"]["value"]) == (6, 3)

    def test_split_schedule_is_scaled(self) -> None:
        graph = {
            "1": node("BasicScheduler", steps=20, denoise=1.0),
            "2": node("SplitSigmas", step=15, sigmas=["1", 0]),
            "3": node("SamplerCustom", noise_seed=1, sigmas=["2", 0]),
            "4": node("SaveImage", images=["3", 0]),
        }
        assert run_with(describe_graph(graph), {"steps": 8})["2"]["inputs"]["step"] == 6

    def test_border_with_an_explicit_value_is_kept(self) -> None:
        described = describe_graph(WAN_22, OBJECT_INFO)
        (border,) = (property_["key"] for property_ in described.properties if "scaled_from" in property_)
        assert run_with(described, {"steps": 8, border: 7})["57"]["inputs"]["end_at_step"] == 7

    @given(st.integers(1, 10_000), st.integers(1, 200), st.integers(0, 200))
    def test_chained_samplers_share_a_border(self, steps: int, before: int, border: int) -> None:
        graph = changed(WAN_22, "57", steps=before, end_at_step=border)
        described = describe_graph(changed(graph, "58", steps=before, start_at_step=border), OBJECT_INFO)
        filled = run_with(described, {"steps": steps})
        one, other = filled["57"]["inputs"], filled["58"]["inputs"]
        assert one["end_at_step"] == other["start_at_step"]
        assert (one["end_at_step"] <= steps) == (border <= before) or border > before

    def test_steps_are_whole_numbers(self) -> None:
        for info in (OBJECT_INFO, None):
            described = properties_of(describe_graph(WAN_22, info))
            assert {property_.key for property_ in described if property_.is_whole} >= {
                "seed",
                "steps",
                "width",
                "height",
                "length",
            }


def test_labels_with_the_name_of_their_node_do_not_repeat_its_words() -> None:
    method: list[Any] = [["nearest", "bilinear"], {}]
    scale = {"image": ["IMAGE", {}], "upscale_method": method, "width": ["INT", {"default": 512}]}
    info = {
        **OBJECT_INFO,
        "ImageScale": {"display_name": "Upscale Image", "input": {"required": scale}},
        "ImageScaleBy": {"display_name": "Upscale Image By", "input": {"required": scale}},
    }
    graph = {
        **SDXL,
        "30": node("ImageScale", image=["8", 0], upscale_method="nearest", width=512),
        "31": node("ImageScaleBy", image=["30", 0], upscale_method="nearest", width=1024),
        "32": node("SaveImage", images=["31", 0], filename_prefix="x"),
    }
    found = [label for label in labels(describe_graph(graph, info)) if "upscale" in label.casefold()]
    assert found == [
        "Method, upscale image",
        "Width, upscale image",
        "Method, upscale image by",
        "Width, upscale image by",
    ]


def test_equal_models_of_two_nodes_are_labelled_with_their_node() -> None:
    loras = {
        "20": node("LoraLoader", lora_name="a.safetensors", strength_model=1.0, model=["4", 0]),
        "21": node("LoraLoaderModelOnly", lora_name="b.safetensors", strength_model=1.0, model=["20", 0]),
    }
    found = labels(describe_graph({**changed(SDXL, "3", model=["21", 0]), **loras}))
    assert {"LoRA, LoRA loader", "LoRA, LoRA loader model only"} <= set(found)
    assert not [label for label in found if label.startswith("LoRA ")]
