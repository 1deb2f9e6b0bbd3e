"""Describing a graph turns its values into typed properties, whose defaults give the same graph again."""

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.domain.properties import ASSET_TYPES, Property
from comfyrelay.errors import GraphError
from comfyrelay.protocol import user as wire
from comfyrelay.services.catalogue.checks import read_properties
from comfyrelay.services.forms.describe import DescribedWorkflow, describe_graph
from comfyrelay.services.forms.drafts import MAX_PROPERTIES
from tests.support.described_graphs import files_of, filled_graph, places, property_of, request_body
from tests.support.form_graphs import (
    ALL,
    FLUX,
    LTX,
    OBJECT_INFO,
    SDXL,
    SVD,
    VIDEO_TO_VIDEO,
    WAN,
    WAN_22,
    WAN_WRAPPER,
    definition,
    node,
)
from tests.support.simulator_files import OBJECT_INFO_RECORDED

every_graph = pytest.mark.parametrize("graph", ALL.values(), ids=ALL)
# recorded from a real server without custom nodes or models
RECORDED = json.loads(OBJECT_INFO_RECORDED.read_text())
with_and_without = pytest.mark.parametrize(
    "object_info", [OBJECT_INFO, RECORDED, None], ids=["defined", "recorded", "guessed"]
)


def keys(described: DescribedWorkflow) -> list[str]:
    return [property_["key"] for property_ in described.properties]


def changed(graph: Graph, node_id: str, **inputs: Any) -> Graph:
    copy = deepcopy(graph)
    copy[node_id]["inputs"].update(inputs)
    return copy


class TestRoundTrip:
    @every_graph
    @with_and_without
    def test_defaults_and_original_files_give_the_same_graph(
        self, graph: Graph, object_info: dict[str, Any] | None
    ) -> None:
        described = describe_graph(graph, object_info)
        assert filled_graph(described, files_of(graph, described)) == graph

    @every_graph
    def test_describing_does_not_change_the_graph(self, graph: Graph) -> None:
        before = deepcopy(graph)
        describe_graph(graph, OBJECT_INFO)
        assert graph == before

    @given(st.data())
    def test_arbitrary_values_give_the_same_graph(self, data: st.DataObject) -> None:
        texts = st.text(max_size=20) | st.sampled_from(
            ["{{PROMPT}}", "{{{PROMPT}}}", "{{SEED}} x", "a.png", "/a b.mp4", "\0", "\ud800"]
        )
        plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
        value = plain | st.lists(plain, max_size=3) | st.tuples(st.sampled_from("0123"), st.just(0)).map(list)
        names = st.sampled_from(["text", "seed", "image", "positive", "negative", "conditioning", "value", "", "é"])
        nodes = st.fixed_dictionaries(
            {
                "class_type": st.sampled_from([*OBJECT_INFO, "Unknown", "🐈"]),
                "inputs": st.dictionaries(names, value, max_size=5),
                "_meta": st.fixed_dictionaries({"title": st.text(max_size=10)}),
            }
        )
        graph = data.draw(st.dictionaries(st.sampled_from("0123456"), nodes, min_size=1))
        try:
            described = describe_graph(graph, data.draw(st.sampled_from([OBJECT_INFO, None])))
        except GraphError:
            return
        read_properties(described.properties)
        assert json.loads(json.dumps(described.properties)) == described.properties
        own = files_of(graph, described)
        assert filled_graph(described, own) == {node_id: graph[node_id] for node_id in described.graph}

    def test_unused_nodes_are_omitted(self) -> None:
        described = describe_graph({**SDXL, "99": node("LoadImage", image="forgotten.png")}, OBJECT_INFO)
        assert "99" not in described.graph
        assert "image" not in keys(described)

    def test_text_that_looks_like_a_placeholder_remains_a_text(self) -> None:
        graph = changed(SDXL, "6", text="say {{SEED}} and {{PROMPT}}")
        described = describe_graph(graph, OBJECT_INFO)
        assert filled_graph(described) == graph
        assert property_of(described, "seed")["placeholder"] == "{{SEED_2}}"


class TestRoles:
    @pytest.mark.parametrize(
        ("graph", "roles"),
        [
            (SDXL, {"prompt": ("6", "text"), "negative_prompt": ("7", "text"), "seed": ("3", "seed")}),
            (
                WAN,
                {
                    "prompt": ("93", "text"),
                    "negative_prompt": ("89", "text"),
                    "image": ("97", "image"),
                    "seed": ("86", "noise_seed"),
                },
            ),
            (
                WAN_22,
                {"prompt": ("6", "text"), "negative_prompt": ("7", "text"), "seed": ("57", "noise_seed")},
            ),
            (SVD, {"image": ("23", "image"), "seed": ("3", "seed")}),
            (
                LTX,
                {
                    "prompt": ("6", "text"),
                    "negative_prompt": ("7", "text"),
                    "image": ("78", "image"),
                    "seed": ("72", "noise_seed"),
                },
            ),
            (
                WAN_WRAPPER,
                {
                    "prompt": ("16", "positive_prompt"),
                    "negative_prompt": ("16", "negative_prompt"),
                    "image": ("58", "image"),
                    "seed": ("27", "seed"),
                },
            ),
            (
                VIDEO_TO_VIDEO,
                {"prompt": ("6", "text"), "video": ("1", "video"), "image": ("2", "image"), "seed": ("10", "value")},
            ),
            (FLUX, {"prompt": ("50", "value"), "seed": ("25", "noise_seed")}),
        ],
        ids=ALL,
    )
    @with_and_without
    def test_roles_are_recognised(
        self, graph: Graph, roles: dict[str, tuple[str, str]], object_info: dict[str, Any] | None
    ) -> None:
        described = describe_graph(graph, object_info)
        assert {role: places(described, key) for role, key in described.roles.items()} == {
            role: {place} for role, place in roles.items()
        }
        assert keys(described)[: len(roles)] == list(described.roles.values()) == list(roles)

    def test_encoder_with_the_prompt_twice_is_one_property(self) -> None:
        encoder = node(
            "CLIPTextEncodeSDXL", text_g="a red fox", text_l="a red fox", width=1024, height=1024, clip=["4", 1]
        )
        described = describe_graph({**SDXL, "6": encoder}, OBJECT_INFO)
        assert places(described, "prompt") == {("6", "text_g"), ("6", "text_l")}

    def test_two_different_texts_of_one_encoder_are_two_properties(self) -> None:
        encoder = node("CLIPTextEncodeSDXL", text_g="a red fox in the snow", text_l="a fox", clip=["4", 1])
        described = describe_graph({**SDXL, "6": encoder}, OBJECT_INFO)
        assert places(described, "prompt") == {("6", "text_g")}
        assert property_of(described, "clip_text_encode_sdxl_text_l")["default_value"] == "a fox"

    def test_two_samplers_with_one_seed_are_one_property(self) -> None:
        second = node("KSampler", seed=SDXL["3"]["inputs"]["seed"], positive=["6", 0], latent_image=["3", 0])
        described = describe_graph({**changed(SDXL, "8", samples=["20", 0]), "20": second}, OBJECT_INFO)
        assert places(described, "seed") == {("3", "seed"), ("20", "seed")}

    def test_first_of_two_samplers_has_the_prompt_and_the_seed(self) -> None:
        detail = {
            "1": node("CLIPTextEncode", text="a face, with very much detail in it", clip=["4", 1]),
            "2": node("KSampler", seed=5, positive=["1", 0], negative=["7", 0], latent_image=["3", 0]),
        }
        described = describe_graph({**changed(SDXL, "8", samples=["2", 0]), **detail}, OBJECT_INFO)
        assert places(described, "prompt") == {("6", "text")}
        assert places(described, "seed") == {("3", "seed")}
        assert property_of(described, "ksampler_seed")["default_value"] == 5

    def test_further_seeds_follow_the_main_seed(self) -> None:
        more = {
            "1": node("PrimitiveInt", value=7),
            "2": node("KSampler", seed=["1", 0], positive=["6", 0], negative=["7", 0], latent_image=["3", 0]),
            "20": node("KSamplerAdvanced", add_noise="disable", noise_seed=0, positive=["6", 0], latent_image=["2", 0]),
        }
        described = describe_graph({**changed(SDXL, "8", samples=["20", 0]), **more}, OBJECT_INFO)
        assert keys(described)[:4] == ["prompt", "negative_prompt", "seed", "primitive_int_seed"]
        # The last sampler adds no noise.
        assert keys(described)[-1] == "ksampler_advanced_noise_seed"
        seeds = [Property.from_json(property_) for property_ in described.properties]
        assert [seed.default_value for seed in seeds if seed.is_seed] == [SDXL["3"]["inputs"]["seed"], 7, 0]

    def test_prompt_is_found_through_nodes_that_change_both_sides(self) -> None:
        graph = changed(SDXL, "3", positive=["20", 0], negative=["20", 1])
        described = describe_graph(
            {**graph, "20": node("ControlNet", positive=["6", 0], negative=["7", 0])}, OBJECT_INFO
        )
        assert (places(described, "prompt"), places(described, "negative_prompt")) == ({("6", "text")}, {("7", "text")})

    def test_prompt_is_found_through_unknown_nodes_by_their_definitions(self) -> None:
        info = {**OBJECT_INFO, "Odd": definition(x=["CONDITIONING"])}
        described = describe_graph({**changed(SDXL, "3", positive=["20", 0]), "20": node("Odd", x=["6", 0])}, info)
        assert places(described, "prompt") == {("6", "text")}

    def test_prompt_behind_a_switch_is_not_the_negative_one(self) -> None:
        switched = changed(SDXL, "6", text=["20", 0])
        switch = node("Switch", on_true=["21", 0], on_false=["22", 0], switch=True)
        graph = {**switched, "20": switch, "21": node("Words", string="a red fox"), "22": node("Empty", string="")}
        assert places(describe_graph(graph), "prompt") == {("21", "string")}
        graph["20"] = node("MakePrompt", image=["5", 0])
        described = describe_graph(graph)
        assert "prompt" not in described.roles
        assert places(described, "negative_prompt") == {("7", "text")}

    @pytest.mark.parametrize("is_defined", [True, False])
    def test_steps_behind_a_switch_have_their_role(self, is_defined: bool) -> None:
        more = {
            "20": node("ComfySwitchNode", switch=False, on_false=["21", 0], on_true=["22", 0]),
            "21": node("PrimitiveInt", "Slow", value=20),
            "22": node("PrimitiveInt", "Fast", value=4),
        }
        described = describe_graph({**changed(SDXL, "3", steps=["20", 0]), **more}, OBJECT_INFO if is_defined else None)
        steps = [fields for fields in described.properties if fields.get("role") == "steps"]
        assert [(fields["default_value"], fields["label"]) for fields in steps] == [
            (4, "Steps, Fast"),
            (20, "Steps, Slow"),
        ]

    def test_seed_belongs_to_the_sampler_that_adds_noise(self) -> None:
        first = node("KSamplerAdvanced", add_noise="disable", noise_seed=4, positive=["6", 0], negative=["7", 0])
        described = describe_graph({**changed(SDXL, "3", latent_image=["20", 0]), "20": first}, OBJECT_INFO)
        assert places(described, "seed") == {("3", "seed")}

    def test_zeroed_prompt_is_not_a_negative_prompt(self) -> None:
        assert "negative_prompt" not in describe_graph(VIDEO_TO_VIDEO, OBJECT_INFO).roles
        other = {**VIDEO_TO_VIDEO, "7": node("ConditioningZeroOut", conditioning=["20", 0])}
        described = describe_graph(
            {**other, "20": node("CLIPTextEncode", text="has no effect", clip=["9", 1])}, OBJECT_INFO
        )
        assert "negative_prompt" not in described.roles

    def test_roles_without_a_sampler_come_from_names_and_titles(self) -> None:
        graph = {
            "1": node("SomeVideoService", prompt="a boat", negative_prompt="rain", seed=3, image=["2", 0]),
            "2": node("LoadImage", image="boat.png"),
            "3": node("SaveVideo", video=["1", 0]),
        }
        assert describe_graph(graph).roles == {
            "prompt": "prompt",
            "negative_prompt": "negative_prompt",
            "image": "image",
            "seed": "seed",
        }
        titled = {
            "1": node("Encode", "Negative", text="rain"),
            "2": node("Encode", "Positive", text="a boat"),
            "3": node("OddSampler", yes=["2", 0], no=["1", 0]),
            "4": node("SaveImage", images=["3", 0]),
        }
        described = describe_graph(titled)
        assert (places(described, "prompt"), places(described, "negative_prompt")) == ({("2", "text")}, {("1", "text")})

    def test_first_frame_is_the_primary_input(self) -> None:
        graph = {**WAN, "1": node("LoadImage", "Last frame", image="end.png")}
        graph = changed(graph, "98", end_image=["1", 0])
        described = describe_graph(graph, OBJECT_INFO)
        assert places(described, "image") == {("97", "image")}
        assert [property_["key"] for property_ in described.properties if property_["is_primary_input"]] == ["image"]
        assert property_of(described, "last_frame_image")["required"] is True

    def test_control_image_is_not_the_primary_input(self) -> None:
        pose = {
            "1": node("LoadImage", image="pose.png"),
            "2": node("ControlNetApply", image=["1", 0], positive=["6", 0]),
        }
        start = {"40": node("LoadImage", image="me.png"), "41": node("VAEEncode", pixels=["40", 0])}
        graph = changed({**SDXL, **pose, **start}, "3", positive=["2", 0], latent_image=["41", 0])
        assert places(describe_graph(graph, OBJECT_INFO), "image") == {("40", "image")}

    def test_first_frame_takes_precedence_over_a_video(self) -> None:
        graph = {**WAN, "1": node("VHS_LoadVideo", video="moves.mp4")}
        described = describe_graph(changed(graph, "98", frames=["1", 0]), OBJECT_INFO)
        assert [property_["key"] for property_ in described.properties if property_["is_primary_input"]] == ["image"]
        assert described.roles["video"] == "video"

    def test_same_file_in_two_nodes_is_one_property(self) -> None:
        graph = {**WAN, "1": node("LoadImage", image="fox.png"), "2": node("CLIPVisionEncode", image=["1", 0])}
        described = describe_graph(changed(graph, "98", clip_vision_output=["2", 0]), OBJECT_INFO)
        assert places(described, "image") == {("97", "image"), ("1", "image")}


class TestLeftovers:
    @pytest.mark.parametrize("value", ["data:image/png;base64,iVBORw0KGgo=", "iVBORw0KGgoAAAANSUhEUg" * 20 + "=="])
    def test_embedded_files_are_not_fields(self, value: str) -> None:
        graph = {"1": node("Painter", image_data=value, caption="a"), "2": node("SaveImage", images=["1", 0])}
        described = describe_graph(graph)
        assert [fields["default_value"] for fields in described.properties] == ["a"]

    def test_long_prompt_is_a_field(self) -> None:
        described = describe_graph(changed(SDXL, "6", text="a red fox in the snow, " * 50), OBJECT_INFO)
        assert property_of(described, "prompt")["default_value"].startswith("a red fox")

    def test_values_for_the_editor_or_for_nothing_are_not_fields(self) -> None:
        info = {**OBJECT_INFO, "Loader": definition(name=[["a"], {}], viewport_state=["LOAD_3D", {}])}
        graph = {
            "1": node("Loader", name="a", example="[none]", viewport_state=""),
            "2": node("SaveImage", images=["1", 0]),
        }
        described = describe_graph(graph, info)
        assert keys(described) == ["loader_name"]
        assert filled_graph(described) == graph

    def test_inputs_that_continue_a_numbered_series_are_fields_of_its_type(self) -> None:
        text, mode = ["STRING", {"multiline": True}], [["add", "mix"], {"display_name": "First mode"}]
        info = {**OBJECT_INFO, "Joiner": definition(string_1=text, string_2=text, mode_1=mode)}
        joiner = node("Joiner", string_1="a", string_2="b", string_3="c", mode_2="mix", other_3="d", string_="e")
        described = describe_graph({"1": joiner, "2": node("SaveImage", images=["1", 0])}, info)
        assert [fields["default_value"] for fields in described.properties] == ["a", "b", "c", "mix"]
        added = property_of(described, "joiner_mode_2")
        assert (added["type"], added["choices"], added["label"]) == ("choice", ["add", "mix"], "Mode 2")

    def test_fields_of_a_chosen_format_are_fields(self) -> None:
        choice = [["mp4"], {"formats": {"mp4": [["crf", "INT", {}]]}}]
        info = {**OBJECT_INFO, "Coder": definition(method=choice)}
        graph = {"1": node("Coder", method="mp4", crf=19), "2": node("SaveImage", images=["1", 0])}
        assert "coder_crf" in keys(describe_graph(graph, info))


class TestBounds:
    def test_bounds_of_the_machine_allow_any_number(self) -> None:
        limits = {"min": -(2**63) + 1, "max": 2**63 - 1}
        info = {**OBJECT_INFO, "Adder": definition(amount=["INT", limits], few=["INT", {"min": -5, "max": 5}])}
        graph = {"1": node("Adder", amount=3, few=1), "2": node("SaveImage", images=["1", 0])}
        amount, few = describe_graph(graph, info).properties
        assert "minimum" not in amount
        assert "maximum" not in amount
        assert (few["minimum"], few["maximum"]) == (-5, 5)

    def test_seed_keeps_its_largest_value(self) -> None:
        assert property_of(describe_graph(SDXL, OBJECT_INFO), "seed")["maximum"] > 2**53


class TestTypes:
    def test_choices_beyond_the_size_limit_become_texts(self) -> None:
        files = [f"{number:0100}.safetensors" for number in range(900)]
        info = {
            "Load": definition(name=[files], kind=[["a", "b"]]),
            "Save": definition(output=True, images=["IMAGE"]),
        }
        graph = {f"{number}": node("Load", name=files[number], kind="a") for number in range(1, 31)}
        images: dict[str, Any] = {f"image{number}": [f"{number}", 0] for number in range(1, 31)}
        graph["99"] = node("Save", **images)
        described = describe_graph(graph, info)
        types = [(fields["type"], "choices" in fields) for fields in described.properties]
        assert types.count(("text", False)) > 0
        # short lists are still choices
        assert types.count(("choice", True)) > 30
        assert filled_graph(described, {}) == graph
        read_properties(described.properties)

    def test_ranges_and_choices_come_from_the_definitions(self) -> None:
        described = describe_graph(SDXL, OBJECT_INFO)
        steps, sampler = property_of(described, "steps"), property_of(described, "ksampler_sampler_name")
        assert (steps["type"], steps["minimum"], steps["maximum"], steps["step"]) == ("number", 1, 10_000, 1)
        assert property_of(described, "ksampler_cfg")["step"] == 0.1
        assert property_of(describe_graph(WAN_22, OBJECT_INFO), "length")["step"] == 4
        assert (sampler["type"], sampler["choices"]) == ("choice", ["euler", "dpmpp_2m", "uni_pc"])

    def test_type_follows_the_value_without_node_definitions(self) -> None:
        described = describe_graph(changed(SVD, "14", flag=True, note="x"))
        assert property_of(described, "steps")["type"] == "number"
        assert property_of(described, "ksampler_sampler_name")["type"] == "text"
        assert property_of(described, "video_linear_cfg_guidance_flag")["type"] == "boolean"
        assert "minimum" not in property_of(described, "steps")

    def test_missing_model_keeps_the_value_of_the_graph(self) -> None:
        described = describe_graph(changed(SDXL, "4", ckpt_name="mine.safetensors"), OBJECT_INFO)
        model = property_of(described, "load_checkpoint_ckpt_name")
        assert model["choices"] == ["sdxl/base.safetensors", "other.safetensors", "mine.safetensors"]
        assert model["default_value"] == "mine.safetensors"

    def test_default_out_of_range_removes_the_violated_bound(self) -> None:
        cfg = property_of(describe_graph(changed(SDXL, "3", cfg=200), OBJECT_INFO), "ksampler_cfg")
        assert (cfg["minimum"], "maximum" in cfg) == (0.0, False)
        cfg = property_of(describe_graph(changed(SDXL, "3", cfg=-1), OBJECT_INFO), "ksampler_cfg")
        assert ("minimum" in cfg, cfg["maximum"]) == (False, 100.0)

    def test_list_too_long_for_a_property_becomes_a_text(self) -> None:
        info = {
            **OBJECT_INFO,
            "CheckpointLoaderSimple": definition(ckpt_name=[[f"{n}.safetensors" for n in range(5000)]]),
        }
        described = describe_graph(changed(SDXL, "4", ckpt_name="7.safetensors"), info)
        assert property_of(described, "load_checkpoint_ckpt_name")["type"] == "text"

    @pytest.mark.parametrize(
        ("loader", "kind"),
        [
            (node("LoadImage", image="x.png [output]"), "image"),
            (node("VHS_LoadVideo", video="x.gif"), "video"),
            (node("VHS_LoadVideoPath", video="/home/me/My Clips/x.mp4"), "video"),
            (node("VHS_LoadVideoPath", video=""), "video"),
            (node("LoadAudio", audio="x.mp3"), "audio"),
            (node("PackLoadVideo", video="my clip 7.mp4"), "video"),
            (node("SomeLoader", path="C:\\pictures\\x one.jpg"), "image"),
        ],
    )
    def test_file_is_a_required_input_without_a_default(self, loader: dict[str, Any], kind: str) -> None:
        described = describe_graph({"1": loader, "2": node("SaveImage", images=["1", 0])}, OBJECT_INFO)
        (found,) = (property_ for property_ in described.properties if property_["type"] in ASSET_TYPES)
        assert (found["key"], found["type"], found["default_value"], found["required"]) == (kind, kind, None, True)
        assert found["is_primary_input"] is True
        assert described.roles[kind] == kind

    def test_prompt_that_ends_like_a_file_is_a_text(self) -> None:
        for info in (OBJECT_INFO, None):
            described = describe_graph(changed(SDXL, "6", text="a cat, in the style of cat.png"), info)
            assert property_of(described, "prompt")["type"] == "text"

    def test_lists_objects_and_editor_fields_are_unchanged(self) -> None:
        graph = changed(SDXL, "3", control_after_generate="randomize", points={"a": 1}, curve=[1, 2, 3], nothing=None)
        described = describe_graph(graph, OBJECT_INFO)
        inputs = described.graph["3"]["inputs"]
        assert {name: inputs[name] for name in ("control_after_generate", "points", "curve", "nothing")} == {
            "control_after_generate": "randomize",
            "points": {"a": 1},
            "curve": [1, 2, 3],
            "nothing": None,
        }

    def test_oversized_graph_keeps_the_important_properties(self) -> None:
        many = {f"{n}": node("Add", a=["3", 0], b=n, c=n) for n in range(1000, 1400)}
        described = describe_graph({**WAN, **many}, OBJECT_INFO)
        assert len(described.properties) == MAX_PROPERTIES
        assert keys(described)[:4] == ["prompt", "negative_prompt", "image", "seed"]
        wire.NewWorkflow.model_validate(request_body(described))


class TestKeys:
    def test_key_is_title_and_input_with_the_node_id_for_duplicates(self) -> None:
        found = keys(describe_graph(WAN, OBJECT_INFO))
        assert len(set(found)) == len(found)
        assert {"wan_image_to_video_batch_size", "ksampler_advanced_cfg", "ksampler_advanced_cfg_85"} <= set(found)

    def test_inputs_that_differ_only_in_punctuation_have_distinct_keys(self) -> None:
        graph = {
            "7": node("Odd", None, **{"a b": 1, "a_b": 2, "a-b": 3, "": 4}),
            "8": node("SaveImage", images=["7", 0]),
        }
        assert keys(describe_graph(graph)) == ["odd_a_b", "odd_a_b_7", "odd_a_b_7_2", "odd_value"]

    def test_keys_do_not_depend_on_the_node_order(self) -> None:
        backwards = {node_id: {**node, "inputs": node["inputs"]} for node_id, node in reversed(list(WAN.items()))}
        assert keys(describe_graph(backwards, OBJECT_INFO)) == keys(describe_graph(WAN, OBJECT_INFO))

    def test_non_latin_title_falls_back_to_the_class(self) -> None:
        graph = {**SDXL, "5": node("EmptyLatentImage", "空", width=8, height=8, batch_size=1)}
        assert "empty_latent_image_batch_size" in keys(describe_graph(graph, OBJECT_INFO))

    def test_input_named_prompt_does_not_replace_the_role(self) -> None:
        graph = {**SDXL, "5": node("EmptyLatentImage", "Negative", prompt=8, width=8)}
        described = describe_graph(graph, OBJECT_INFO)
        assert property_of(described, "negative_prompt")["default_value"] == "blurry"
        assert property_of(described, "negative_prompt_5")["default_value"] == 8


class TestOutput:
    @pytest.mark.parametrize(
        ("graph", "expected"),
        [
            (SDXL, ("9", "png", "image/png")),
            (WAN, ("108", "mp4", "video/mp4")),
            (WAN_22, ("61", "mp4", "video/mp4")),
            (SVD, ("10", "webp", "image/webp")),
            (LTX, ("41", "webp", "image/webp")),
            (WAN_WRAPPER, ("30", "mp4", "video/mp4")),
            (VIDEO_TO_VIDEO, ("12", "webm", "video/webm")),
            (FLUX, ("9", "png", "image/png")),
        ],
        ids=ALL,
    )
    @with_and_without
    def test_output_is_the_saved_file(
        self, graph: Graph, expected: tuple[str, str, str], object_info: dict[str, Any] | None
    ) -> None:
        found = describe_graph(graph, object_info)
        assert (found.output_node_id, found.output_extension, found.output_mime_type) == expected

    @pytest.mark.parametrize(
        ("format_", "extension"),
        [("image/gif", "gif"), ("video/ProRes", "mov"), ("video/h264-mp4", "mp4"), ("video/nvenc_hevc-mp4", "mp4")],
    )
    def test_saver_format_gives_the_extension_and_is_not_a_property(self, format_: str, extension: str) -> None:
        found = describe_graph(changed(WAN_WRAPPER, "30", format=format_), OBJECT_INFO)
        assert found.output_extension == extension
        assert found.graph["30"]["inputs"]["format"] == format_

    def test_video_is_preferred_to_its_frames_and_a_file_to_a_preview(self) -> None:
        frames = {
            "200": node("SaveImage", images=["202", 0]),
            "201": node("PreviewImage", images=["202", 0]),
            "202": node("ImageScaleBy", image=["203", 0]),
            "203": node("ImageFromBatch", image=["87", 0]),
        }
        assert describe_graph({**frames, **WAN}, OBJECT_INFO).output_node_id == "108"
        assert describe_graph({**SDXL, "1": node("PreviewImage", images=["8", 0])}, OBJECT_INFO).output_node_id == "9"

    def test_unknown_saver_is_preferred_to_a_preview(self) -> None:
        graph = {
            **SDXL,
            "9": node("Image Saver", extension="jpg", images=["8", 0]),
            "10": node("ShowAny", any=["9", 0]),
        }
        found = describe_graph(graph, OBJECT_INFO)
        assert (found.output_node_id, found.output_extension) == ("9", "jpg")

    @pytest.mark.parametrize(
        ("shower", "inputs"),
        [
            ("PreviewAny", {"source": ["*", {}]}),
            ("ShowText|pysssss", {"text": ["STRING", {"forceInput": True}]}),
            ("Save Text File", {"text": ["STRING", {}], "path": ["STRING", {}], "mode": [["new", "append"], {}]}),
            ("easy showAnything", {"anything": ["*", {}]}),
        ],
    )
    def test_text_graph_outputs_text(self, shower: str, inputs: dict[str, Any]) -> None:
        name, known = next(iter(inputs)), {shower: definition(output=True, **inputs)}
        shown: dict[str, Any] = {name: ["1", 0]}
        graph = {"1": node("StringConcatenate", string_a="a", string_b="b"), "2": node(shower, **shown)}
        # this also holds if only the class name shows that it is text
        for info in (known, *([] if "Anything" in shower else [None])):
            found = describe_graph(graph, info)
            assert (found.output_node_id, found.output_extension, found.output_mime_type) == ("2", "txt", "text/plain")
        # next to an image, the image is the output
        both = {**SDXL, "200": node(shower, **{name: "x"})}
        assert describe_graph(both, {**OBJECT_INFO, **known}).output_node_id == "9"

    @pytest.mark.parametrize("kind", ["FILE_3D_GLB", "MESH", "SPLAT"])
    def test_node_that_saves_a_model_may_output_any_file(self, kind: str) -> None:
        known = {"SaveMesh": definition(output=True, model=[kind, {}], note=["STRING", {}])}
        found = describe_graph({"1": node("MakeMesh"), "2": node("SaveMesh", model=["1", 0])}, known)
        assert (found.output_extension, found.output_mime_type) == ("bin", "application/octet-stream")

    @with_and_without
    def test_websocket_image_node_is_an_output(self, object_info: dict[str, Any] | None) -> None:
        found = describe_graph({**SDXL, "9": node("SaveImageWebsocket", images=["8", 0])}, object_info)
        assert (found.output_node_id, found.output_extension) == ("9", "png")

    def test_last_image_is_the_output(self) -> None:
        upscaled = {"1": node("ImageScaleBy", image=["8", 0], scale_by=2.0), "2": node("SaveImage", images=["1", 0])}
        assert describe_graph({**SDXL, **upscaled}, OBJECT_INFO).output_node_id == "2"

    def test_graph_without_an_output_is_refused(self) -> None:
        with pytest.raises(GraphError, match="no output node"):
            describe_graph({"6": SDXL["6"], "4": SDXL["4"]}, OBJECT_INFO)


class TestRefusals:
    def test_editor_file_error_names_the_export(self) -> None:
        with pytest.raises(GraphError, match=r"Export \(API\)"):
            describe_graph({"last_node_id": 9, "nodes": [{"id": 1, "type": "KSampler"}], "links": []}, OBJECT_INFO)

    @pytest.mark.parametrize("broken", [{}, [], None, {"1": {}}, {"1": {"class_type": "A"}}])
    def test_invalid_graph_is_refused(self, broken: object) -> None:
        with pytest.raises(GraphError):
            describe_graph(broken, OBJECT_INFO)

    @pytest.mark.timeout(20)
    def test_deep_circular_graph_is_described(self) -> None:
        count = 3000
        chain = {
            str(n): node("ConditioningCombine", conditioning=[str(n + 1), 0], positive=[str((n * 7) % count), 0])
            for n in range(count)
        }
        chain["0"] = node("SaveImage", images=["1", 0])
        assert describe_graph(chain, OBJECT_INFO).output_node_id == "0"
