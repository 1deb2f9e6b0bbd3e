"""Values that node packs store in their own way are read correctly."""

from typing import Any

import pytest

from comfyrelay.comfyui.editor.convert import convert_workflow
from comfyrelay.comfyui.editor.filling import fill_editor_file
from comfyrelay.comfyui.editor.placeholders import put_placeholders
from tests.support.editor_files import DEFINITIONS, node, workflow

FORMATS = {"video/h264-mp4": [["crf", "INT", {"default": 19}], ["pix_fmt", ["yuv420p", "yuv420p10le"]]]}
PACKS: dict[str, Any] = {
    **DEFINITIONS,
    "VHS_LoadVideo": {
        "input": {
            "required": {
                "video": [["a.mp4"], {}],
                "force_rate": ["FLOAT", {"default": 0}],
                "custom_width": ["INT", {"default": 0}],
                "custom_height": ["INT", {"default": 0}],
                "frame_load_cap": ["INT", {"default": 0}],
                "skip_first_frames": ["INT", {"default": 0}],
                "select_every_nth": ["INT", {"default": 1}],
            }
        },
        "output": ["IMAGE"],
    },
    "VHS_VideoCombine": {
        "input": {
            "required": {
                "frame_rate": ["FLOAT", {"default": 8}],
                "format": [["image/gif", "video/h264-mp4"], {"formats": FORMATS}],
                "save_output": ["BOOLEAN", {"default": True}],
            }
        },
        "output": [],
    },
    "Picker": {
        "input": {
            "required": {
                "image": ["IMAGE"],
                "size": ["INT", {"default": 1}],
                "tint": ["COLORCODE", {"default": "#fff"}],
                "styles": ["PACK_STYLES"],
                "last": ["INT", {"default": 2}],
            },
            "optional": {"mask": ["MASK"]},
        },
        "output": ["IMAGE", "MASK"],
    },
}
SIZES = ("custom_width", "custom_height")


def inputs(class_type: str, values: Any, slots: Any = ()) -> dict[str, Any]:
    graph = convert_workflow(workflow([node(1, class_type, slots, values=values)]), PACKS)
    found: dict[str, Any] = graph["1"]["inputs"]
    return found


@pytest.mark.parametrize(
    ("force_size", "expected"),
    [
        ("Disabled", (0, 0)),
        ("Custom Width", (640, 0)),
        ("Custom Height", (0, 512)),
        ("Custom", (640, 512)),
        ("256x?", (256, 0)),
        ("?x256", (0, 256)),
        ("256x384", (256, 384)),
        (None, (640, 512)),
    ],
)
def test_obsolete_size_choice_sets_the_size_of_a_video(force_size: Any, expected: tuple[int, int]) -> None:
    stored = {"video": "a.mp4", "force_size": force_size, "custom_width": 640, "custom_height": 512}
    found = inputs("VHS_LoadVideo", stored)
    assert tuple(found[name] for name in SIZES) == expected
    assert "force_size" not in found


def test_positional_values_of_a_video_loader_include_the_obsolete_size() -> None:
    found = inputs("VHS_LoadVideo", ["a.mp4", 12, "Disabled", 16, 1, 2, "image"])
    assert found == {
        "video": "a.mp4",
        "force_rate": 12,
        "custom_width": 0,
        "custom_height": 0,
        "frame_load_cap": 16,
        "skip_first_frames": 1,
        "select_every_nth": 2,
    }


def test_value_written_into_the_file_is_not_undone_by_the_obsolete_size() -> None:
    stored = {"video": "a.mp4", "force_size": "Disabled", "custom_width": 640, "custom_height": 512}
    file = workflow([node(1, "VHS_LoadVideo", values=stored)])
    graph = convert_workflow(file, PACKS)
    graph["1"]["inputs"]["custom_width"] = "{{WIDTH}}"
    put_placeholders(file, PACKS, graph, ["{{WIDTH}}"])
    again = convert_workflow(fill_editor_file(file, {"{{WIDTH}}": 320}), PACKS)
    assert tuple(again["1"]["inputs"][name] for name in SIZES) == (320, 0)


def test_chosen_format_has_its_own_fields_and_no_others() -> None:
    stored = {"frame_rate": 8, "format": "video/h264-mp4", "crf": 20, "save_image": False, "left": "over"}
    assert inputs("VHS_VideoCombine", stored) == {
        "frame_rate": 8,
        "format": "video/h264-mp4",
        "save_output": False,
        "crf": 20,
        "pix_fmt": "yuv420p",
    }
    assert "crf" not in inputs("VHS_VideoCombine", {**stored, "format": "image/gif"})


def test_fields_that_a_pack_defines_are_read_from_older_files() -> None:
    # A later version of the pack added the mask input.
    slots = [("image", "IMAGE", None)]
    assert inputs("Picker", [3, "#123456", "noir,pop", 4], slots) == {
        "size": 3,
        "tint": "#123456",
        "styles": "noir,pop",
        "last": 4,
    }


def test_fields_that_a_pack_defines_are_named_by_newer_files() -> None:
    slots = [("image", "IMAGE", None), ("tint", "COLORCODE", None, "tint"), ("styles", "*", None, "styles")]
    assert inputs("Picker", [3, "#123456", "noir", 4], slots)["last"] == 4


def test_plain_input_that_the_file_does_not_know_is_not_a_field() -> None:
    slots = [("image", "IMAGE", None), ("tint", "COLORCODE", None), ("styles", "PACK_STYLES", None)]
    assert inputs("Picker", [3, 4], slots) == {"size": 3, "last": 4}


@pytest.mark.parametrize(
    ("stored", "expected"),
    [({"content": "area", "image": None}, "area"), (None, "nearest-exact"), ("area", "area")],
)
def test_choice_with_a_preview_image_is_read_as_its_name(stored: Any, expected: str) -> None:
    assert inputs("ImageScaleBy", [stored, 2.0])["upscale_method"] == expected


def test_sampler_of_the_first_comfyui_has_its_current_name() -> None:
    assert inputs("KSampler", [5, True, 8, "sample_euler"])["sampler_name"] == "euler"


@pytest.mark.parametrize("stored", [["a", 1.5, 7], {"video": "a", "start_time": 1.5, "last": 7}])
def test_ordinary_value_with_its_own_widget_is_a_field(stored: Any) -> None:
    timed = {"video": ["STRING", {}], "start_time": ["FLOAT", {"widgetType": "PACK_TIME"}], "last": ["INT", {}]}
    definitions = {"Timed": {"input": {"required": timed}, "output": []}}
    graph = convert_workflow(workflow([node(1, "Timed", values=stored)]), definitions)
    assert graph["1"]["inputs"] == {"video": "a", "start_time": 1.5, "last": 7}
