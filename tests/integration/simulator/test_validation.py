"""Invalid graphs are refused with ComfyUI's error messages."""

from typing import Any

import pytest

from comfyrelay.simulator import Simulator
from tests.integration.simulator.raw_client import Client, invert_graph

Node = dict[str, Any]


def node(class_type: str, **inputs: Any) -> Node:
    return {"class_type": class_type, "inputs": inputs}


EMPTY = node("EmptyImage", width=8, height=8, batch_size=1, color=0)
SAVE = node("SaveImage", images=["1", 0], filename_prefix="x")


async def errors_of(client: Client, graph: dict[str, Node], node_id: str) -> list[dict[str, Any]]:
    response = await client.prompt(graph)
    assert response.status_code == 400, response.text
    body = response.json()
    assert body["error"]["type"] == "prompt_outputs_failed_validation"
    errors: list[dict[str, Any]] = body["node_errors"][node_id]["errors"]
    return errors


@pytest.mark.parametrize(
    ("changes", "kind", "message", "details"),
    [
        ({"width": 0}, "value_smaller_than_min", "Value 0 smaller than min of 1", "width"),
        ({"width": 99999}, "value_bigger_than_max", "Value 99999 bigger than max of 16384", "width"),
        (
            {"width": "wide"},
            "invalid_input_type",
            "Failed to convert an input value to a INT value",
            "width, wide, invalid literal for int() with base 10: 'wide'",
        ),
        (
            {"width": ["1"]},
            "bad_linked_input",
            "Bad linked input, must be a length-2 list of [node_id, slot_index]",
            "width",
        ),
        (
            {"width": ["7", 0]},
            "return_type_mismatch",
            "Return type mismatch between linked nodes",
            "width, received_type(IMAGE) mismatch input_type(INT)",
        ),
    ],
)
async def test_invalid_value_is_refused_with_details(
    changes: dict[str, Any], kind: str, message: str, details: str, client: Client
) -> None:
    faulty = {"class_type": "EmptyImage", "inputs": {**EMPTY["inputs"], **changes}}
    [error] = await errors_of(client, {"1": faulty, "3": SAVE, "7": EMPTY}, "1")
    assert (error["type"], error["message"], error["details"]) == (kind, message, details)
    assert error["extra_info"]["input_name"] == "width"
    assert error["extra_info"]["input_config"][0] == "INT"


async def test_numbers_are_converted_to_the_input_type(client: Client) -> None:
    graph = {"1": {"class_type": "EmptyImage", "inputs": {**EMPTY["inputs"], "width": "12"}}, "3": SAVE}
    entry = await client.run(graph)
    assert entry["prompt"][2]["1"]["inputs"]["width"] == 12


async def test_wrapped_list_is_a_value(client: Client) -> None:
    entry = await client.run({"1": node("PreviewAny", source={"__value__": ["a", 1]})})
    assert entry["outputs"]["1"]["text"] == ['["a", 1]']


async def test_short_lists_are_shown_and_long_ones_are_not() -> None:
    scale = node("ImageScale", image=["7", 0], upscale_method="x", width=8, height=8, crop="disabled")
    async with Simulator(models={"checkpoints": [f"{n}.safetensors" for n in range(21)]}) as simulator:
        client = Client(simulator)
        [short] = await errors_of(client, {"1": scale, "3": SAVE, "7": EMPTY}, "1")
        loader = {"1": node("CheckpointLoaderSimple", ckpt_name="x"), "2": node("PreviewAny", source=["1", 0])}
        [long] = await errors_of(client, loader, "1")
    methods = ["nearest-exact", "bilinear", "area", "bicubic", "lanczos"]
    assert short["details"] == f"upscale_method: 'x' not in {methods}"
    # With options, also if the definition has none.
    assert short["extra_info"]["input_config"] == [methods, {}]
    assert long["details"] == "ckpt_name: 'x' not in (list of length 21)"
    assert long["extra_info"]["input_config"] is None


async def test_new_style_choices_are_checked(client: Client) -> None:
    saver = node("SaveWEBM", images=["7", 0], filename_prefix="x", codec="h264", fps=8.0, crf=1.0)
    [error] = await errors_of(client, {"1": saver, "7": EMPTY}, "1")
    assert error["details"] == "codec: 'h264' not in ['vp9', 'av1']"


async def test_broken_links_are_exceptions(client: Client) -> None:
    [outer] = await errors_of(client, {"3": SAVE}, "3")
    assert (outer["type"], outer["extra_info"]["exception_type"]) == ("exception_during_validation", "KeyError")
    [slot] = await errors_of(client, {"1": EMPTY, "3": node("SaveImage", images=["1", 5], filename_prefix="x")}, "3")
    assert slot["extra_info"]["exception_type"] == "IndexError"
    inverted = node("ImageInvert", image=["none", 0])
    [inner] = await errors_of(client, {"1": inverted, "3": SAVE}, "1")
    assert (inner["type"], inner["extra_info"]["exception_type"]) == ("exception_during_inner_validation", "KeyError")
    assert inner["extra_info"]["linked_node"] == ["1", 0]
    [bare] = await errors_of(client, {"3": {"class_type": "SaveImage"}}, "3")
    assert bare["extra_info"]["exception_type"] == "KeyError"


async def test_cycle_is_refused_without_a_reason_by_older_versions() -> None:
    graph = {"1": node("ImageInvert", image=["2", 0]), "2": node("ImageInvert", image=["1", 0]), "3": SAVE}
    async with Simulator(version="0.7.0") as simulator, Client(simulator).http as http:
        response = await http.post("/prompt", json={"prompt": graph})
    assert response.status_code == 400
    assert response.json()["error"]["details"] == ""
    assert response.json()["node_errors"] == {}


async def test_unknown_inputs_are_ignored(client: Client) -> None:
    graph = invert_graph()
    graph["2"]["inputs"]["from_the_future"] = 1
    assert (await client.run(graph))["status"]["completed"]


async def test_empty_graph_has_no_outputs(client: Client) -> None:
    assert (await client.prompt({})).json()["error"]["type"] == "prompt_no_outputs"


async def test_files_in_subfolders_are_found_and_missing_videos_are_refused(client: Client) -> None:
    folder = client.simulator.folder / "input"
    (folder / "sub").mkdir()
    (folder / "sub" / "a.png").write_bytes((folder / "rec.png").read_bytes())
    assert (await client.run(invert_graph("sub/a.png")))["status"]["completed"]
    graph = {"1": node("LoadVideo", file="none.mp4"), "3": node("PreviewAny", source=["1", 0])}
    [error] = await errors_of(client, graph, "1")
    assert error["details"] == "file - Invalid video file: none.mp4"
