"""A workflow saved by ComfyUI's editor becomes the graph that the editor would have sent."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comfyrelay.comfyui.editor.convert import MAX_MARKS, MAX_NODES, convert_workflow
from comfyrelay.comfyui.editor.loading import as_graph
from comfyrelay.comfyui.editor.sources import NodeOutput, Scope, Sources
from comfyrelay.comfyui.editor.workflow import is_editor_file, read_workflow
from comfyrelay.comfyui.graphs.dynamic_prompts import dynamic_prompts_of
from comfyrelay.comfyui.graphs.preflight import graph_problems
from comfyrelay.errors import ComfyRelayError, GraphError, GraphRefused, NotInstalled
from tests.support.editor_files import DEFINITIONS, Slot, empty, invert, node, save, subgraph, workflow
from tests.support.full import full_only

SCALE, NEST = "a-scale", "a-nest"


def inputs(value: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {node_id: converted["inputs"] for node_id, converted in convert_workflow(value, DEFINITIONS).items()}


def scaled(*, link: int | None = None) -> dict[str, Any]:
    """Return a subgraph that shows the factor of the node inside."""
    inner = node(
        7, "ImageScaleBy", [("image", "IMAGE", 1), ("scale_by", "FLOAT", 11, "scale_by")], values=["area", 2.0]
    )
    links = [(1, -10, 0, 7, 0), (11, -10, 1, 7, 1), (2, 7, 0, -20, 0)]
    return subgraph(
        SCALE, [inner], links, [("image", "IMAGE", [1]), ("scale_by", "FLOAT", [11])], [("IMAGE", "IMAGE", [2])]
    )


def nested() -> dict[str, Any]:
    """Return a subgraph that contains the one of `scaled` and shows its field under another name."""
    inner = node(20, SCALE, [("image", "IMAGE", 31), ("scale_by", "FLOAT", 32, "scale_by")], values=[2.25])
    links = [(31, -10, 0, 20, 0), (32, -10, 1, 20, 1), (33, 20, 0, -20, 0)]
    return subgraph(
        NEST, [inner], links, [("image", "IMAGE", [31]), ("factor", "FLOAT", [32])], [("IMAGE", "IMAGE", [33])]
    )


def use(
    node_id: int, kind: str, link: int, *, field: str, field_link: int | None = None, **more: Any
) -> dict[str, Any]:
    return node(node_id, kind, [("image", "IMAGE", link), (field, "FLOAT", field_link, field)], **more)


class TestFields:
    def test_values_are_named_by_their_position(self) -> None:
        graph = convert_workflow(workflow([empty(), save(2, 1)], [(1, 1, 0, 2, 0)]), DEFINITIONS)
        assert graph == {
            "1": {
                "class_type": "EmptyImage",
                "inputs": {"width": 64, "height": 48, "batch_size": 1, "color": 255},
                "_meta": {"title": "Empty Image"},
            },
            "2": {
                "class_type": "SaveImage",
                "inputs": {"images": ["1", 0], "filename_prefix": "out"},
                "_meta": {"title": "SaveImage"},
            },
        }

    def test_fields_without_a_value_have_the_default(self) -> None:
        assert inputs(workflow([empty(values=[32])]))["1"] == {
            "width": 32,
            "height": 512,
            "batch_size": 1,
            "color": 0,
        }

    def test_seed_control_widget_is_not_sent(self) -> None:
        found = inputs(workflow([node(1, "KSampler", [("model", "MODEL", None)], values=[5, "randomize", 8, "euler"])]))
        assert found["1"] == {"seed": 5, "steps": 8, "sampler_name": "euler"}

    def test_file_without_seed_control_is_read(self) -> None:
        found = inputs(workflow([node(1, "KSampler", [("model", "MODEL", None)], values=[5, 8, "euler"])]))
        assert found["1"] == {"seed": 5, "steps": 8, "sampler_name": "euler"}

    def test_values_may_be_stored_by_name(self) -> None:
        values = {"frame_rate": 24, "format": "video/h264-mp4", "crf": 19, "videopreview": {"params": {}}}
        found = inputs(workflow([node(1, "VHS_VideoCombine", [("images", "IMAGE", None)], (), values)]))
        assert found["1"] == {"frame_rate": 24, "format": "video/h264-mp4", "crf": 19}

    def test_dynamic_choice_adds_its_fields(self) -> None:
        values = ["webm", "av1", "mine"]
        grown: list[Any] = [("images.image0", "IMAGE", 1), ("images.image1", "IMAGE", 2)]
        found = inputs(workflow([empty(), node(2, "SaveClip", grown, (), values)], [(1, 1, 0, 2, 0), (2, 1, 0, 2, 1)]))
        assert found["2"] == {
            "format": "webm",
            "format.codec": "av1",
            "filename_prefix": "mine",
            "images.image0": ["1", 0],
            "images.image1": ["1", 0],
        }

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("a {red} cat // not a dog\nin /* no */the rain \\{sic\\}", "a red cat \nin the rain {sic}"),
            # Each job makes its own choice, so the braces are kept.
            ("a {red|{dark|light} blue} cat // no dog", "a {red|{dark|light} blue} cat "),
            ("a | b } c {d", "a | b } c d"),
            ("\ud800 {a|b}", "\ud800 {a|b}"),
            ("\ud800", "\ud800"),
        ],
    )
    def test_prompt_is_sent_without_comments_and_keeps_its_choices(self, text: str, expected: str) -> None:
        found = inputs(workflow([node(1, "CLIPTextEncode", [("clip", "CLIP", None)], values=[text])]))
        assert found["1"] == {"text": expected}

    @pytest.mark.parametrize(
        ("text", "is_dynamic"), [("a {red|blue} cat", True), ("a \\{red|blue\\} cat", False), ("a {red} cat", False)]
    )
    def test_dynamic_prompts_of_the_editor_are_marked(self, text: str, is_dynamic: bool) -> None:
        file = workflow([node(1, "CLIPTextEncode", [("clip", "CLIP", None)], values=[text])])
        graph = convert_workflow(file, DEFINITIONS)
        assert dynamic_prompts_of(graph["1"]) == ({"text": text} if is_dynamic else {})

    @pytest.mark.parametrize("mark", ["{", "//\n", *full_only("a|", "}", "\\", "/*")])
    def test_texts_with_too_many_brackets_are_refused_before_parsing(self, mark: str) -> None:
        prompts = [node(at, "CLIPTextEncode", [("clip", "CLIP", None)], values=[mark * 100_001]) for at in (1, 2, 3)]
        with pytest.raises(GraphError, match=f"more than {MAX_MARKS:,} brackets"):
            inputs(workflow(prompts))

    def test_list_value_is_not_a_link(self) -> None:
        found = inputs(workflow([empty(values=[[1, 2]])]))
        assert found["1"]["width"] == {"__value__": [1, 2]}


class TestLinks:
    def test_converted_field_is_a_link(self) -> None:
        value = workflow(
            [
                empty(1),
                node(3, "PrimitiveFloat", values=[2.5], outputs=[("FLOAT", "FLOAT")]),
                node(
                    2,
                    "ImageScaleBy",
                    [("image", "IMAGE", 1), ("scale_by", "FLOAT", 2, "scale_by")],
                    values=["area", 9.0],
                ),
            ],
            [(1, 1, 0, 2, 0), (2, 3, 0, 2, 1)],
        )
        assert inputs(value)["2"] == {"image": ["1", 0], "upscale_method": "area", "scale_by": ["3", 0]}

    def test_primitive_sets_every_linked_field(self) -> None:
        value = workflow(
            [
                node(9, "PrimitiveNode", outputs=[("INT", "INT")], values=[77, "fixed"]),
                node(
                    1, "EmptyImage", [("width", "INT", 5, "width"), ("height", "INT", 6, "height")], values=[1, 2, 3, 4]
                ),
            ],
            [(5, 9, 0, 1, 0), (6, 9, 0, 1, 1)],
        )
        assert inputs(value) == {"1": {"width": 77, "height": 77, "batch_size": 3, "color": 4}}

    @pytest.mark.parametrize(("is_rerouted", "width"), [(False, 77), (True, 5)])
    def test_primitive_behind_a_reroute_does_not_set_a_promoted_field(self, is_rerouted: bool, width: int) -> None:
        inner = node(1, "EmptyImage", [("width", "INT", 1, "width")], values=[5, 2, 3, 4])
        definition = subgraph(
            "s", [inner], [(1, -10, 0, 1, 0), (2, 1, 0, -20, 0)], [("width", "INT", [1])], [("IMAGE", "IMAGE", [2])]
        )
        value = workflow(
            [
                node(9, "PrimitiveNode", outputs=[("INT", "INT")], values=[77, "fixed"]),
                node(8, "Reroute", [("", "*", 5)], outputs=[("", "INT")]),
                node(2, "s", [("width", "INT", 6, "width")], outputs=[("IMAGE", "IMAGE")], values=[]),
                save(3, 7),
            ],
            [(5, 9, 0, 8, 0), (6, *((8, 0) if is_rerouted else (9, 0)), 2, 0), (7, 2, 0, 3, 0)],
            definitions={"subgraphs": [definition]},
        )
        assert inputs(value)["2:1"]["width"] == width

    @pytest.mark.parametrize("kind", ["Reroute", "Reroute (rgthree)"])
    def test_reroutes_are_passed_through(self, kind: str) -> None:
        value = workflow(
            [empty(), node(2, kind, [("", "*", 1)]), node(3, kind, [("", "*", 2)]), save(4, 3)],
            [(1, 1, 0, 2, 0), (2, 2, 0, 3, 0), (3, 3, 0, 4, 0)],
        )
        assert inputs(value)["4"]["images"] == ["1", 0]

    def test_named_value_is_found_inside_a_subgraph(self) -> None:
        inside = subgraph(
            SCALE,
            [node(1, "GetNode", values=["picture"]), invert(2, 1)],
            [(1, 1, 0, 2, 0), (2, 2, 0, -20, 0)],
            [],
            [("IMAGE", "IMAGE", [2])],
        )
        value = workflow(
            [empty(), node(2, "SetNode", [("IMAGE", "IMAGE", 1)], values=["picture"]), node(3, SCALE), save(4, 2)],
            [(1, 1, 0, 2, 0), (2, 3, 0, 4, 0)],
            definitions={"subgraphs": [inside]},
        )
        assert inputs(value)["3:2"] == {"image": ["1", 0]}

    def test_bypassed_node_passes_on_its_input(self) -> None:
        value = workflow([empty(), invert(2, 1, mode=4), save(3, 2)], [(1, 1, 0, 2, 0), (2, 2, 0, 3, 0)])
        assert inputs(value)["3"]["images"] == ["1", 0]
        assert "2" not in inputs(value)

    def test_bypassed_node_without_a_matching_input_has_no_output(self) -> None:
        value = workflow([empty(1, mode=4), save(3, 2)], [(2, 1, 0, 3, 0)])
        assert inputs(value) == {"3": {"filename_prefix": "out"}}

    def test_output_of_a_muted_node_is_dropped(self) -> None:
        value = workflow([empty(), invert(2, 1, mode=2), save(3, 2)], [(1, 1, 0, 2, 0), (2, 2, 0, 3, 0)])
        assert inputs(value)["3"] == {"filename_prefix": "out"}

    def test_muted_reroute_passes_on_nothing(self) -> None:
        value = workflow(
            [empty(), node(2, "Reroute", [("", "*", 1)], mode=2), save(4, 2)], [(1, 1, 0, 2, 0), (2, 2, 0, 4, 0)]
        )
        assert inputs(value)["4"] == {"filename_prefix": "out"}

    def test_field_that_is_linked_to_a_muted_node_has_its_own_value(self) -> None:
        linked = node(1, "EmptyImage", [("width", "INT", 5, "width")], values=[64, 48, 1, 255])
        value = workflow([node(9, "PrimitiveFloat", values=[2.5], mode=2), linked], [(5, 9, 0, 1, 0)])
        assert inputs(value)["1"]["width"] == 64

    def test_notes_are_skipped(self) -> None:
        value = workflow([empty(), node(5, "Note", values=["hello"]), node(6, "MarkdownNote", values=["# hello"])])
        assert list(inputs(value)) == ["1"]

    def test_links_of_format_1_are_read(self) -> None:
        links = [{"id": 1, "origin_id": 1, "origin_slot": 0, "target_id": 2, "target_slot": 0, "type": "IMAGE"}]
        assert inputs({"nodes": [empty(), save(2, 1)], "links": links, "version": 1})["2"]["images"] == ["1", 0]


class TestSubgraphs:
    def test_subgraph_used_twice_is_expanded_twice(self) -> None:
        value = workflow(
            [
                empty(),
                use(2, SCALE, 1, field="scale_by", values=[3.5]),
                use(3, SCALE, 2, field="scale_by", values=[4.5]),
                save(4, 3),
            ],
            [(1, 1, 0, 2, 0), (2, 2, 0, 3, 0), (3, 3, 0, 4, 0)],
            definitions={"subgraphs": [scaled()]},
        )
        assert inputs(value) == {
            "1": {"width": 64, "height": 48, "batch_size": 1, "color": 255},
            "2:7": {"image": ["1", 0], "upscale_method": "area", "scale_by": 3.5},
            "3:7": {"image": ["2:7", 0], "upscale_method": "area", "scale_by": 4.5},
            "4": {"images": ["3:7", 0], "filename_prefix": "out"},
        }

    def test_unset_subgraph_field_has_the_inner_value(self) -> None:
        value = workflow(
            [empty(), use(2, SCALE, 1, field="scale_by")],
            [(1, 1, 0, 2, 0)],
            definitions={"subgraphs": [scaled()]},
        )
        assert inputs(value)["2:7"]["scale_by"] == 2.0

    @pytest.mark.parametrize("values", [[], ['{"a": [1]}\n// b']], ids=["inner value", "own value"])
    def test_text_that_a_subgraph_shows_keeps_its_braces_and_comments(self, values: list[str]) -> None:
        slots: list[Slot] = [("clip", "CLIP", None), ("text", "STRING", 1, "text")]
        inner = node(7, "CLIPTextEncode", slots, values=['{"a": [1]}\r\n// b'])
        shown = subgraph("shown", [inner], [(1, -10, 0, 7, 1)], [("text", "STRING", [1])], [])
        outer = node(2, "shown", [("text", "STRING", None, "text")], values=values)
        assert inputs(workflow([outer], definitions={"subgraphs": [shown]})) == {"2:7": {"text": '{"a": [1]}\n// b'}}

    def test_newer_files_assign_values_by_field_name(self) -> None:
        shown = {"proxyWidgets": [["7", "upscale_method"], ["-1", "scale_by"]]}
        value = workflow(
            [empty(), use(2, SCALE, 1, field="scale_by", values=[None, 4.5], properties=shown)],
            [(1, 1, 0, 2, 0)],
            definitions={"subgraphs": [scaled()]},
        )
        assert inputs(value)["2:7"]["scale_by"] == 4.5

    @pytest.mark.parametrize(
        ("origin", "factor"),
        [
            (None, 6.0),
            (node(8, "PrimitiveFloat", outputs=[("FLOAT", "FLOAT")], values=[1.75]), ["8", 0]),
            (node(8, "PrimitiveNode", outputs=[("FLOAT", "FLOAT")], values=[1.25, "fixed"]), 1.25),
        ],
    )
    def test_field_is_shown_through_several_subgraphs(self, origin: dict[str, Any] | None, factor: Any) -> None:
        outer = use(2, NEST, 1, field="factor", field_link=9 if origin else None, values=[6.0])
        value = workflow(
            [empty(), outer, save(4, 2), *([origin] if origin else [])],
            [(1, 1, 0, 2, 0), (2, 2, 0, 4, 0), (9, 8, 0, 2, 1)],
            definitions={"subgraphs": [nested(), scaled()]},
        )
        found = inputs(value)
        assert found["2:20:7"] == {"image": ["1", 0], "upscale_method": "area", "scale_by": factor}
        assert found["4"]["images"] == ["2:20:7", 0]

    @pytest.mark.parametrize(("mode", "images"), [(2, None), (4, ["1", 0])])
    def test_disabled_subgraph_is_skipped(self, mode: int, images: Any) -> None:
        value = workflow(
            [empty(), use(2, SCALE, 1, field="scale_by", mode=mode), save(4, 2)],
            [(1, 1, 0, 2, 0), (2, 2, 0, 4, 0)],
            definitions={"subgraphs": [scaled()]},
        )
        found = inputs(value)
        assert set(found) == {"1", "4"}
        assert found["4"].get("images") == images

    def test_subgraph_input_may_be_linked_to_its_output(self) -> None:
        through = subgraph(SCALE, [], [(1, -10, 0, -20, 0)], [("image", "IMAGE", [1])], [("IMAGE", "IMAGE", [1])])
        value = workflow(
            [empty(), node(2, SCALE, [("image", "IMAGE", 1)]), save(4, 2)],
            [(1, 1, 0, 2, 0), (2, 2, 0, 4, 0)],
            definitions={"subgraphs": [through]},
        )
        assert inputs(value)["4"]["images"] == ["1", 0]


def test_legacy_group_node_is_expanded() -> None:
    inside = [
        empty(0),
        node(1, "ImageScaleBy", [("image", "IMAGE", None)], values=["bilinear", 2.0]),
        node(2, "ImageBlend", [("image1", "IMAGE", None), ("image2", "IMAGE", None)], values=[0.5, "normal"]),
    ]
    group = {"nodes": inside, "links": [[0, 0, 1, 0, 0, "IMAGE"], [1, 0, 2, 0, 1, "IMAGE"]], "external": []}
    values = [128, 96, 1, 7, "area", 1.5, 0.25, "multiply"]
    value = workflow(
        [empty(9), node(5, "workflow>mine", [("image2", "IMAGE", 7)], values=values), save(6, 8)],
        [(7, 9, 0, 5, 0), (8, 5, 0, 6, 0)],
        extra={"groupNodes": {"mine": group}},
    )
    assert inputs(value) == {
        "9": {"width": 64, "height": 48, "batch_size": 1, "color": 255},
        "6": {"images": ["5:2", 0], "filename_prefix": "out"},
        "5:0": {"width": 128, "height": 96, "batch_size": 1, "color": 7},
        "5:1": {"image": ["5:0", 0], "upscale_method": "area", "scale_by": 1.5},
        "5:2": {"image1": ["5:1", 0], "image2": ["9", 0], "blend_factor": 0.25, "blend_mode": "multiply"},
    }


def test_group_input_of_another_name_is_found_by_its_position() -> None:
    blend = node(0, "ImageBlend", [("image1", "IMAGE", None), ("image2", "IMAGE", None)], values=[0.5, "normal"])
    group: dict[str, Any] = {"nodes": [blend], "links": [], "external": []}
    slots: list[Any] = [("ImageBlend image1", "IMAGE", 7), ("image2", "IMAGE", 8)]
    value = workflow(
        [empty(9), empty(10), node(5, "workflow>mine", slots, values=[0.5, "normal"]), save(6, 11)],
        [(7, 9, 0, 5, 0), (8, 10, 0, 5, 1), (11, 5, 0, 6, 0)],
        extra={"groupNodes": {"mine": group}},
    )
    blended = inputs(value)["5:0"]
    assert (blended["image1"], blended["image2"]) == (["9", 0], ["10", 0])
    # A hidden input has no position.
    group |= {"config": {"0": {"input": {"image1": {"visible": False}}}}}
    value["nodes"][2]["inputs"] = value["nodes"][2]["inputs"][:1]
    blended = inputs(value)["5:0"]
    assert (blended.get("image1"), blended["image2"]) == (None, ["9", 0])


@pytest.mark.parametrize(
    ("inner", "specs"),
    [
        ("Count", {"value": ["INT", {"control_after_generate": True}]}),
        ("Pick", {"choice": [["a", "b"], {"control_after_generate": True}]}),
        ("PrimitiveNode", {}),
    ],
)
def test_values_of_a_group_are_not_shifted_after_any_action(inner: str, specs: dict[str, Any]) -> None:
    first = node(-1, inner) | {"outputs": [{"name": "INT", "type": "INT", "links": []}]}
    last = node(-1, "Last")
    definitions = {
        **DEFINITIONS,
        "Last": {"input": {"required": {"after": ["INT", {}]}}, "output": [], "output_node": True},
        **({inner: {"input": {"required": specs}, "output": ["INT"]}} if specs else {}),
    }
    for values in ([3, "randomize", 7], [3, 7]):
        value = workflow(
            [node(5, "workflow>mine", values=values)],
            extra={"groupNodes": {"mine": {"nodes": [first, last], "links": [], "external": []}}},
        )
        assert convert_workflow(value, definitions)["5:1"]["inputs"] == {"after": 7}


def sampler_in_a_group() -> dict[str, Any]:
    """Return a node as editors since 1.16 save it, in which each field is also an input."""
    fields = ("seed", "steps", "sampler_name")
    return node(-1, "KSampler", [("model", "MODEL", None), *((name, "*", None, name) for name in fields)])


def test_fields_of_a_group_keep_their_values_after_a_seed() -> None:
    group = {"nodes": [sampler_in_a_group(), sampler_in_a_group() | {"title": "Second"}], "links": [], "external": []}
    values = [1, "fixed", 20, "euler", 2, "randomize", 30, "dpmpp_2m"]
    shown = ("seed", "steps", "sampler_name", "Second seed", "Second steps", "Second sampler_name")
    slots: list[Any] = [("model", "MODEL", None), *((name, "*", None, name) for name in shown)]
    # A link to a field replaces the field's value.
    slots[5] = ("Second steps", "INT", 7, "Second steps")
    value = workflow(
        [node(9, "PrimitiveFloat", values=[9.5]), node(5, "workflow>mine", slots, values=values)],
        [(7, 9, 0, 5, 5)],
        extra={"groupNodes": {"mine": group}},
    )
    found = inputs(value)
    assert found["5:0"] == {"seed": 1, "steps": 20, "sampler_name": "euler"}
    assert found["5:1"] == {"seed": 2, "steps": ["9", 0], "sampler_name": "dpmpp_2m"}


def test_value_after_a_seed_that_became_an_input_is_not_shifted() -> None:
    specs = {
        "first": ["FLOAT", {}],
        "seed": ["INT", {"forceInput": True}],
        "steps": ["INT", {}],
        "last": ["STRING", {}],
    }
    definitions = {**DEFINITIONS, "Old": {"input": {"required": specs}, "output": []}}
    graph = convert_workflow(workflow([node(1, "Old", values=[0.5, 11, "randomize", 20, "end"])]), definitions)
    assert graph["1"]["inputs"] == {"first": 0.5, "steps": 20, "last": "end"}


class TestDisagreeingLinks:
    """If nodes and the table of links disagree, the table applies, as in editor 1.58."""

    @pytest.mark.parametrize(
        ("slot", "links", "expected"),
        [
            (None, [(5, 1, 0, 2, 0)], ["1", 0]),
            (5, [(5, 1, 0, 3, 0)], None),
            (5, [(5, 1, 0, 2, 0), (6, 4, 0, 2, 0)], ["1", 0]),
            (None, [(5, 1, 0, 2, 0), (6, 4, 0, 2, 0)], ["1", 0]),
            (5, [(5, 1, 0, 2, 0), (5, 4, 0, 2, 0)], ["1", 0]),
            (None, [(5, 8, 0, 2, 0), (6, 4, 0, 2, 0)], ["4", 0]),
            (5, [], None),
        ],
    )
    def test_input_has_the_link_of_the_table(self, slot: int | None, links: Any, expected: Any) -> None:
        found = inputs(workflow([empty(1), empty(4), save(2, slot), save(3, None)], links))
        assert found["2"].get("images") == expected

    def test_input_that_names_its_link_keeps_the_link_at_another_position(self) -> None:
        blend = node(2, "ImageBlend", [("image1", "IMAGE", None), ("image2", "IMAGE", 5)], values=[0.5, "normal"])
        found = inputs(workflow([empty(1), blend, save(3, 6)], [(5, 1, 0, 2, 0), (6, 2, 0, 3, 0)]))
        assert (found["2"].get("image1"), found["2"].get("image2")) == (None, ["1", 0])


class TestProblems:
    def test_use_everywhere_is_not_among_the_missing_nodes(self) -> None:
        sender = node(2, "Anything Everywhere", [("anything", "IMAGE", 1)], ())
        with pytest.raises(NotInstalled) as caught:
            convert_workflow(workflow([empty(), sender, node(3, "Foo")], [(1, 1, 0, 2, 0)]), DEFINITIONS)
        assert caught.value.detail == "This node is not installed: Foo (node 3)."

    def test_all_missing_nodes_are_named_at_once(self) -> None:
        value = workflow([empty(), node(2, "Foo", title="My foo"), node(3, "Bar"), node(4, "Off", mode=2)])
        with pytest.raises(NotInstalled) as caught:
            convert_workflow(value, DEFINITIONS)
        assert caught.value.problems == (
            '"My foo", Foo (2): this node is not installed on the server',
            "Bar (3): this node is not installed on the server",
        )
        assert caught.value.detail == "These nodes are not installed: Foo (node 2), Bar (node 3)."

    def test_missing_nodes_are_named_with_their_package(self, tmp_path: Path) -> None:
        node_map = tmp_path / "map.json"
        packs = {
            "https://github.com/me/mine": [["Bar", "Both", "Foo"], {"title_aux": "Mine"}],
            "https://github.com/you/yours": [["Both"], {}],
            "https://github.com/Comfy-Org/ComfyUI": [["Newer"], {}],
            "odd": "not a list",
        }
        node_map.write_text(json.dumps(packs), encoding="utf-8")
        os.utime(node_map, (0, 1_790_000_000))
        names = {"Foo": {"cnr_id": "foo-pack"}, "Aux": {"aux_id": "them/aux"}, "New": {"cnr_id": "comfy-core"}}
        classes = ["Foo", "Foo", "Aux", "New", "Bar", "Both", "Newer"]
        nodes = [node(at, name, properties=names.get(name, {})) for at, name in enumerate(classes, 2)]
        with pytest.raises(NotInstalled) as caught:
            as_graph(workflow([empty(), *nodes]), DEFINITIONS, node_map=node_map)
        assert caught.value.detail == (
            "These nodes are not installed: Foo (nodes 2, 3; package foo-pack), Aux (node 4; package them/aux), "
            "New (node 5; package ComfyUI (update it)), Bar (node 6; package me/mine, from the node map of "
            "2026-09-21), Both (node 7), Newer (node 8; package ComfyUI (update it))."
        )

    def test_missing_models_of_the_file_are_in_the_same_list(self) -> None:
        url = "https://models.test/base.safetensors"
        models = [
            {"name": "base.safetensors", "url": url, "directory": "checkpoints", "hash": "00", "hash_type": "SHA256"},
            {"name": "own.safetensors", "url": "file:///own.safetensors"},
            {"name": "here.safetensors", "url": url},
        ]
        loader = {"input": {"required": {"name": [["folder/here.safetensors"]]}}}
        with pytest.raises(NotInstalled) as caught:
            convert_workflow(
                workflow([empty(), node(2, "Foo", properties={"models": models})]), {**DEFINITIONS, "Loader": loader}
            )
        assert caught.value.detail == (
            "This node is not installed: Foo (node 2). These models are not installed either: "
            f"base.safetensors ({url}, folder checkpoints), own.safetensors."
        )

    @pytest.mark.parametrize("content", [None, "[]", "{"])
    def test_missing_nodes_are_named_without_a_readable_map(self, content: str | None, tmp_path: Path) -> None:
        if content is not None:
            (tmp_path / "map.json").write_text(content, encoding="utf-8")
        with pytest.raises(NotInstalled, match=r"Foo \(node 2\)\."):
            as_graph(workflow([node(2, "Foo")]), DEFINITIONS, node_map=tmp_path / "map.json")

    def test_missing_class_is_named_once_with_its_nodes(self) -> None:
        with pytest.raises(NotInstalled) as caught:
            convert_workflow(workflow([empty(), *(node(node_id, "Foo") for node_id in range(2, 7))]), DEFINITIONS)
        assert caught.value.detail == "This node is not installed: Foo (nodes 2, 3, 4, …)."

    def test_view_of_a_3d_model_is_not_needed(self) -> None:
        saver = {
            "input": {"required": {"model": ["FILE_3D"], "viewport_state": ["LOAD_3D", {}], "width": ["INT", {}]}},
            "output_node": True,
        }
        graph = convert_workflow(workflow([node(1, "Save3D", values=["", 512])]), {"Save3D": saver})
        assert graph["1"]["inputs"] == {"viewport_state": "", "width": 512}

    def test_browser_only_nodes_are_named(self) -> None:
        value = workflow([node(2, "Load3D", values=["a.glb", ""]), node(3, "Load3D")])
        with pytest.raises(GraphRefused) as caught:
            convert_workflow(value, DEFINITIONS)
        assert [text.split(":")[0] for text in caught.value.problems] == ["Load3D (2)", "Load3D (3)"]

    @pytest.mark.parametrize(
        ("kind", "instead"), [("LOAD_3D", "Load3DAdvanced"), ("WEBCAM", "LoadImage"), ("AUDIO_RECORD", "LoadAudio")]
    )
    def test_browser_only_input_is_refused_with_the_node_to_use(self, kind: str, instead: str) -> None:
        info = {"Capture": {"input": {"required": {"image": [kind, {}]}}, "output_node": True}}
        with pytest.raises(GraphRefused, match=f"only the browser can create input 'image': .*Use .*{instead}"):
            convert_workflow(workflow([node(1, "Capture", values=[""])]), info)

    @pytest.mark.parametrize("nodes", [[], [node(1, "Note")], [empty(mode=2)]])
    def test_workflow_without_active_nodes_is_refused(self, nodes: list[Any]) -> None:
        with pytest.raises(GraphError, match="no node"):
            convert_workflow(workflow(nodes), DEFINITIONS)

    def test_subgraph_within_itself_is_refused(self) -> None:
        inside = subgraph(SCALE, [node(1, SCALE)], [(2, 1, 0, -20, 0)], [], [("IMAGE", "IMAGE", [2])])
        value = workflow([node(2, SCALE), save(4, 2)], [(2, 2, 0, 4, 0)], definitions={"subgraphs": [inside]})
        with pytest.raises(GraphError, match="too large"):
            convert_workflow(value, DEFINITIONS)

    def test_subgraphs_that_double_at_each_level_are_refused(self) -> None:
        levels = [subgraph(f"l{at}", [node(1, f"l{at + 1}"), node(2, f"l{at + 1}")], [], [], []) for at in range(40)]
        with pytest.raises(GraphError, match=f"{MAX_NODES:,}"):
            convert_workflow(workflow([node(1, "l0")], definitions={"subgraphs": levels}), DEFINITIONS)

    def test_circular_links_have_no_source(self) -> None:
        value = workflow(
            [node(1, "Reroute", [("", "*", 2)]), node(2, "Reroute", [("", "*", 1)]), save(3, 3)],
            [(1, 1, 0, 2, 0), (2, 2, 0, 1, 0), (3, 1, 0, 3, 0)],
        )
        assert inputs(value) == {"3": {"filename_prefix": "out"}}

    def test_long_chain_of_reroutes_is_followed(self) -> None:
        count = 5000
        chain = [node(at, "Reroute", [("", "*", at - 1)]) for at in range(2, count)]
        links = [(at, at, 0, at + 1, 0) for at in range(1, count)]
        assert inputs(workflow([empty(), *chain, save(count, count - 1)], links))[str(count)]["images"] == ["1", 0]


def test_comparison_of_images_has_the_value_that_the_editor_sends() -> None:
    definition = {"input": {"required": {"view": ["IMAGECOMPARE", {"socketless": True}], "label": ["STRING", {}]}}}
    stored = node(1, "Compare", [], values=["before and after"])
    graph = convert_workflow(workflow([stored], []), {"Compare": {**definition, "output": [], "output_node": True}})
    assert graph["1"]["inputs"] == {"view": {"__value__": ["", ""]}, "label": "before and after"}


@pytest.mark.parametrize(
    ("values", "box"),
    [
        ([{"x": 1, "y": 2, "width": 3, "height": 4}, 1, 2, 3, 4, 7], {"x": 1, "y": 2, "width": 3, "height": 4}),
        ([], {"x": 0, "y": 0, "width": 512, "height": 512}),
    ],
)
def test_numbers_after_a_box_are_not_the_next_fields(values: list[Any], box: dict[str, int]) -> None:
    fields = {"region": ["BOUNDING_BOX", {}], "blur": ["INT", {"default": 7}], "curve": ["CURVE", {}]}
    definitions = {"Crop": {"input": {"required": fields}, "output": [], "output_node": True}}
    inputs = convert_workflow(workflow([node(1, "Crop", [], values=values)], []), definitions)["1"]["inputs"]
    assert (inputs["region"], inputs["blur"]) == (box, 7)
    assert inputs["curve"] == {"points": [[0, 0], [1, 1]], "interpolation": "monotone_cubic"}


def test_long_reroute_chain_is_followed_once() -> None:
    """Following the chain separately for each node would take four million steps."""
    count = 2000
    chain = [node(at, "Reroute", [("", "*", at - 1)]) for at in range(2, count)]
    links = [(at, at, 0, at + 1, 0) for at in range(1, count - 1)]
    ends = [save(count + at, count + at) for at in range(count)]
    links += [(count + at, count - 1, 0, count + at, 0) for at in range(count)]
    steps = Sources(read_workflow(workflow([empty(), *chain, *ends], links)), DEFINITIONS)
    root = Scope(read_workflow(workflow([empty(), *chain, *ends], links)).root)
    for end in ends:
        found = root.sheet.nodes[str(end["id"])]
        assert steps.source(root, found, steps.inputs(found)[0]) == NodeOutput("1", 0)
    assert len(steps._ends) == 2 * count - 2


@pytest.mark.parametrize(
    "group",
    [
        {"nodes": 1},
        {"nodes": [{"type": "EmptyImage"}], "config": {"0": 5}},
        {"nodes": [{"type": "EmptyImage"}], "config": {"0": {"input": {"width": 5}}}},
        {"nodes": [{"type": "EmptyImage"}], "links": 5, "external": [[], [1], 5, [{}, {}]]},
        {"nodes": [{"type": "Odd"}]},
    ],
)
def test_malformed_group_is_ignored(group: dict[str, Any]) -> None:
    value = workflow([empty(), node(5, "workflow>mine")], extra={"groupNodes": {"mine": group}})
    definitions = {**DEFINITIONS, "Odd": {"input": {}, "output": 5}}
    assert "1" in convert_workflow(value, definitions)


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-20, 30)
    | st.just(10**400)
    | st.text(max_size=5)
    | st.sampled_from([*DEFINITIONS, "Anything Everywhere", "Prompts Everywhere", "Seed Everywhere", "%a.b%", "("]),
    lambda children: (
        st.lists(children, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    "id",
                    "type",
                    "inputs",
                    "outputs",
                    "links",
                    "link",
                    "name",
                    "widget",
                    "nodes",
                    "mode",
                    "linkIds",
                    "extra",
                    "properties",
                    "ue_properties",
                    "widget_ue_connectable",
                    "title_regex",
                    "group_restricted",
                    "repeated_type_rule",
                    "pos",
                    "size",
                    "widgets_values",
                    "force_size",
                ]
            ),
            children,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(nodes=st.lists(anything, max_size=5), links=anything, definitions=anything, extra=anything, groups=anything)
def test_conversion_never_crashes(nodes: list[Any], links: Any, definitions: Any, extra: Any, groups: Any) -> None:
    subgraphs = {"subgraphs": definitions}
    value = {
        "nodes": nodes,
        "links": links,
        "definitions": subgraphs,
        "extra": {"groupNodes": extra},
        "groups": groups,
    }
    assert is_editor_file(value)
    try:
        graph = convert_workflow(value, DEFINITIONS)
    except ComfyRelayError:
        return
    assert graph == convert_workflow(json.loads(json.dumps(value)), DEFINITIONS)


@st.composite
def chains(draw: st.DrawFn) -> dict[str, Any]:
    """Return nodes of every kind that passes on an image, some bypassed, each connected to an earlier node."""
    nodes, links = [empty()], []
    for node_id in range(2, draw(st.integers(2, 12)) + 1):
        source, at = draw(st.integers(1, node_id - 1)), 2 * node_id
        links.append((at, source, 0, node_id, 0))
        kind = draw(st.sampled_from(["ImageInvert", "ImageScaleBy", "ImageBlend", "Reroute"]))
        mode: dict[str, Any] = {"mode": draw(st.sampled_from([0, 0, 4]))}
        if kind == "ImageBlend":
            links.append((at + 1, draw(st.integers(1, node_id - 1)), 0, node_id, 1))
            slots = [("image1", "IMAGE", at), ("image2", "IMAGE", at + 1)]
            nodes.append(node(node_id, kind, slots, values=[0.5, "multiply"], **mode))
        elif kind == "Reroute":
            nodes.append(node(node_id, kind, [("", "*", at)], [("", "*")]))
        else:
            values = ["area", 2.0] if kind == "ImageScaleBy" else []
            nodes.append(node(node_id, kind, [("image", "IMAGE", at)], values=values, **mode))
    links.append((1, len(nodes), 0, 99, 0))
    return workflow([*nodes, save(99, 1)], links)


@given(value=chains())
def test_converted_graph_is_accepted_by_the_server(value: dict[str, Any]) -> None:
    assert graph_problems(convert_workflow(value, DEFINITIONS), DEFINITIONS) == []
