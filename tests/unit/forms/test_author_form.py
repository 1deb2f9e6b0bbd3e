"""The form of a workflow's author keeps its fields, their order and labels, and its outputs."""

from typing import Any

from comfyrelay.comfyui.editor.workflow import AppField, AppView
from comfyrelay.domain.properties import Property, seeds_to_draw
from comfyrelay.services.forms.describe import DescribedWorkflow, describe_graph
from tests.support.described_graphs import filled_graph, places, property_of
from tests.support.form_graphs import OBJECT_INFO, SDXL, WAN, node


def field(label: str, *positions: tuple[str, str]) -> AppField:
    return AppField(label=label, inputs=positions)


def sampler_of(graph: dict[str, Any]) -> str:
    return next(node_id for node_id, entry in graph.items() if entry["class_type"].startswith("KSampler"))


SAMPLER = sampler_of(SDXL)
STEPS, SEED = field("Effort", (SAMPLER, "steps")), field("Dice", (SAMPLER, "seed"))
WIDTH, TEXT = field("w", ("5", "width")), field("What to paint", ("6", "text"))


def described(*fields: AppField, outputs: tuple[str, ...] = (), graph: Any = SDXL) -> DescribedWorkflow:
    return describe_graph(graph, OBJECT_INFO, app=AppView(fields=fields, outputs=outputs))


def form(found: DescribedWorkflow) -> list[tuple[str, str]]:
    return [(fields["label"], fields["key"]) for fields in found.properties if fields["user_configurable"]]


def test_form_has_the_fields_of_the_author_in_their_order() -> None:
    found = described(STEPS, WIDTH, TEXT, SEED)
    assert form(found) == [
        ("Effort", "steps"),
        ("w", "width"),
        ("What to paint", "prompt"),
        ("Dice", "seed"),
    ]
    assert filled_graph(found) == SDXL, "an input that is no field lost its value"


def test_roles_are_recognised_among_the_fields() -> None:
    found = described(STEPS, TEXT, SEED)
    assert [fields.get("role") for fields in found.properties] == ["steps", "prompt", "seed"]
    assert found.roles == {"prompt": "prompt", "seed": "seed"}


def test_text_is_the_prompt_if_the_main_prompt_is_not_a_field() -> None:
    graph = {**SDXL, "6": node("CLIPTextEncode", text=["66", 0], clip=["4", 1])}
    graph["66"] = node("JoinTexts", text_a="a long introduction of the picture, which nobody changes", prompt_b="a fox")
    assert described(field("Subject", ("66", "prompt_b")), graph=graph).roles == {"prompt": "prompt"}


def test_role_may_depend_on_inputs_that_are_not_fields() -> None:
    assert form(described(field("How high", ("5", "height")), SEED)) == [("How high", "height"), ("Dice", "seed")]


def test_equal_labels_are_not_changed() -> None:
    found = described(field("side", ("5", "width")), field("side", ("5", "height")), SEED)
    assert [label for label, _ in form(found)] == ["side", "side", "Dice"]


def test_field_with_several_inputs_sets_all_of_them() -> None:
    found = described(field("Side", ("5", "width"), ("5", "height")), SEED)
    assert places(found, form(found)[0][1]) == {("5", "width"), ("5", "height")}


def test_field_offers_the_choices_that_all_of_its_inputs_have() -> None:
    info = {
        **OBJECT_INFO,
        "One": {"input": {"required": {"size": [["1K", "2K"]]}}},
        "Two": {"input": {"required": {"size": [["2K", "4K"]]}}, "output_node": True},
    }
    graph = {"1": node("One", size="2K"), "2": node("Two", size="2K", image=["1", 0])}
    view = AppView(fields=[field("Size", ("1", "size"), ("2", "size"))])
    assert describe_graph(graph, info, app=view).properties[0]["choices"] == ["2K"]


def test_first_file_of_the_author_is_the_primary_input() -> None:
    graph = {
        "1": node("LoadImage", image="a.png"),
        "2": node("LoadImage", image="b.png"),
        "3": node("Blend", one=["1", 0], two=["2", 0], start_image=["1", 0]),
        "4": node("SaveImage", images=["3", 0], filename_prefix="x"),
    }
    found = described(field("B", ("2", "image")), field("A", ("1", "image")), graph=graph)
    assert [(fields["label"], fields["is_primary_input"]) for fields in found.properties] == [("B", True), ("A", False)]


def test_file_that_is_not_a_field_remains_in_the_graph() -> None:
    file = next(node_id for node_id, entry in WAN.items() if entry["class_type"] == "LoadImage")
    found = described(field("Seed", ("86", "noise_seed")), graph=WAN)
    assert found.graph[file] == WAN[file]
    assert [fields["label"] for fields in found.properties] == ["Seed"]


def test_each_job_draws_a_seed_if_the_form_has_none() -> None:
    found = described(TEXT)
    assert form(found) == [("What to paint", "prompt")]
    properties = [Property.from_json(fields) for fields in found.properties]
    assert [seed.key for seed in seeds_to_draw(properties, overrides={}, user_input={})] == ["seed"]
    assert places(found, "seed") == {(SAMPLER, "seed")}
    assert property_of(found, "seed")["maximum"] == 2**64 - 1


def test_seed_of_the_form_does_not_change_other_seeds() -> None:
    graph = {**SDXL, "80": {**SDXL[SAMPLER], "inputs": {**SDXL[SAMPLER]["inputs"], "seed": 99}}}
    graph["81"] = node("SaveImage", images=["80", 0], filename_prefix="x")
    assert described(SEED, graph=graph).graph["80"]["inputs"]["seed"] == 99


def test_fields_without_an_input_count_as_no_form() -> None:
    gone = field("Gone", ("404", "text")), field("Linked", ("6", "clip"))
    assert described(*gone) == describe_graph(SDXL, OBJECT_INFO)


def test_label_is_one_printable_line() -> None:
    found = described(field("a\nb\x1b[31m", ("5", "width")), field("\n", ("5", "height")), SEED)
    assert [label for label, _ in form(found)] == ["a b", "Height", "Dice"]


def with_preview() -> dict[str, Any]:
    return {
        **SDXL,
        "50": node("PreviewImage", images=["51", 0]),
        "51": node("EmptyImage", width=8),
        "52": node("PreviewImage", images=[SAMPLER, 0]),
    }


def test_first_output_of_the_author_is_the_cover() -> None:
    saver = describe_graph(with_preview(), OBJECT_INFO).output_node_id
    found = described(SEED, outputs=("52", saver), graph=with_preview())
    assert found.output_node_id == "52"
    assert saver in found.graph


def test_outputs_that_the_author_omits_do_not_run() -> None:
    found = described(SEED, outputs=("52", "404"), graph=with_preview())
    assert "52" in found.graph
    assert not {"50", "51"} & found.graph.keys()


def test_output_runs_if_a_field_of_the_form_is_for_it() -> None:
    found = described(SEED, field("Test width", ("51", "width")), outputs=("52",), graph=with_preview())
    assert {"50", "51", "52"} <= found.graph.keys()
    assert found.output_node_id == "52"


def test_listed_outputs_that_are_not_output_nodes_are_ignored() -> None:
    assert described(outputs=(SAMPLER, "404")) == describe_graph(SDXL, OBJECT_INFO)
