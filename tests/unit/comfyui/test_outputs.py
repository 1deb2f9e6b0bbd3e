"""The outputs of a run are found in every place where nodes report them."""

from typing import Any

import pytest

from comfyrelay.comfyui.outputs import OutputFile, result_of


def item(name: str, **more: object) -> dict[str, Any]:
    return {"filename": name, "subfolder": "s", "type": "output", **more}


def names(outputs: dict[str, Any], *wanted: str) -> list[str]:
    return [file.filename for file in result_of(outputs, prompt_id="p", wanted=wanted).files]


@pytest.mark.parametrize("key", ["images", "gifs", "video", "videos", "audio", "files", "3d", "latents", "new_thing"])
def test_files_are_found_under_every_key(key: str) -> None:
    # Newer servers register files as assets and also name them here.
    entry = item("a.mp4", format="video/h264-mp4", id="0b5c", asset_hash="blake3:00")
    (file,) = result_of({"9": {key: [entry]}}, prompt_id="p").files
    assert file == OutputFile(node_id="9", filename="a.mp4", subfolder="s", type="output", key=key)


def test_entries_that_are_not_files_are_skipped() -> None:
    outputs = {
        "1": {"animated": [True], "images": [None, "x", {"name": "y"}, item("a.png")], "note": "hello"},
        "2": None,
    }
    assert names(outputs) == ["a.png"]


def test_displayed_input_is_not_an_output() -> None:
    assert names({"1": {"images": [item("in.png", type="input"), item("out.png")]}}) == ["out.png"]


def test_texts_are_separate_from_files() -> None:
    result = result_of({"1": {"text": ["a", "b"]}}, prompt_id="p")
    assert result.texts == {"1": ("a", "b")}
    assert not result.is_empty
    with pytest.raises(LookupError):
        _ = result.file


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ({"result": ["mesh.glb", None]}, "mesh.glb"),
        ({"mesh_stats": [{"faces": 12}]}, '{"faces": 12}'),
        ({"count": [3, True], "animated": [False]}, "3"),
    ],
)
def test_unknown_kind_of_output_is_passed_on_as_text(output: dict[str, Any], text: str) -> None:
    assert result_of({"1": output}, prompt_id="p").texts == {"1": (text,)}
    # Options of the editor are not an output of a run that has others.
    assert result_of({"1": output, "2": {"text": ["a"]}}, prompt_id="p").texts == {"2": ("a",)}
    assert result_of({"1": output, "2": {"images": [item("a.png")]}}, prompt_id="p").texts == {}
    # The same holds for a run whose wanted node has no output.
    assert result_of({"1": output}, prompt_id="p", wanted=["2"]).is_empty


def test_file_or_text_may_stand_outside_a_list() -> None:
    result = result_of({"1": {"3d": item("a.glb")}, "2": {"text": "plain"}}, prompt_id="p")
    assert ([file.filename for file in result.files], result.texts) == (["a.glb"], {"2": ("plain",)})


def test_run_without_files_and_texts_is_empty() -> None:
    assert result_of({"1": {"animated": [True]}}, prompt_id="p").is_empty


def test_files_are_ordered_by_wanted_node_then_saved_then_preview() -> None:
    outputs = {
        "10": {"images": [item("ten.png")]},
        "2": {"images": [item("preview.png", type="temp")]},
        "9": {"images": [item("nine.png")]},
        "sub:1": {"images": [item("sub.png")]},
    }
    assert names(outputs) == ["nine.png", "ten.png", "sub.png", "preview.png"]
    assert names(outputs, "2", "10") == ["preview.png", "ten.png", "nine.png", "sub.png"]
    # A wanted node without output does not hide the others.
    assert names(outputs, "77") == ["nine.png", "ten.png", "sub.png", "preview.png"]


@pytest.mark.parametrize(
    ("name", "mime_type"),
    [
        ("a.png", "image/png"),
        ("a.WEBP", "image/webp"),
        ("a.mp4", "video/mp4"),
        ("a.webm", "video/webm"),
        ("a.flac", "audio/flac"),
        ("a.strange", "application/octet-stream"),
    ],
)
def test_mime_type_follows_from_the_file_name(name: str, mime_type: str) -> None:
    assert OutputFile(node_id="1", filename=name).mime_type == mime_type
