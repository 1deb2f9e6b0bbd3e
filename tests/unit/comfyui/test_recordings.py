"""The client understands recorded messages of a real ComfyUI."""

import json
from typing import Any

import pytest

from comfyrelay.comfyui.graphs.explain import explain_refusal
from comfyrelay.comfyui.outputs import result_of
from comfyrelay.comfyui.runs.events import RunEvent
from comfyrelay.comfyui.runs.history import failure_in
from comfyrelay.comfyui.runs.progress import RunProgress
from comfyrelay.errors import ComfyError
from tests.support.paths import RECORDINGS

VERSIONS = ("0.7.0", "0.28.0")
IMAGE_TO_VIDEO = ["Started", *["NodeStarted"] * 3, "OutputReady", *["NodeStarted"] * 2, "OutputReady"]


def recording(name: str, version: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECORDINGS / version / f"{name}.json").read_text("utf-8"))
    return found


def events_of(name: str, version: str) -> tuple[RunProgress, list[str], dict[str, Any]]:
    """Return the socket messages about the first prompt of a recording, and its history entry."""
    recorded = recording(name, version)
    exchanges = recorded["http"]
    prompt_id = exchanges[0]["response"]["prompt_id"]
    events: list[RunEvent] = []
    progress = RunProgress(graph=exchanges[0]["request"]["prompt"], prompt_id=prompt_id, on_event=events.append)
    for message in recorded["ws"]:
        if message["data"].get("prompt_id") == prompt_id:
            progress.handle_message(message["type"], message["data"])
    entry = next(exchange["response"][prompt_id] for exchange in exchanges if prompt_id in (exchange["response"] or {}))
    return progress, [type(event).__name__ for event in events], entry


@pytest.mark.parametrize(
    ("name", "kinds", "files"),
    [
        ("image_invert", ["Started", *["NodeStarted"] * 3, "OutputReady"], ["out_00001_.png"]),
        ("image_invert_cached", ["Started", "OutputReady"], ["out_00001_.png"]),
        ("image_to_video", IMAGE_TO_VIDEO, ["clip_00001_.mp4", "web_00001_.webm"]),
        ("video_invert", ["Started", *["NodeStarted"] * 5, "OutputReady"], ["inv_00001_.mp4"]),
    ],
)
@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_success_is_understood(version: str, name: str, kinds: list[str], files: list[str]) -> None:
    progress, event_names, entry = events_of(name, version)
    assert event_names == kinds
    assert progress.succeeded
    assert progress.over
    assert failure_in(entry) is None
    assert [file.filename for file in result_of(entry["outputs"], prompt_id="p").files] == files
    # The socket and the history agree.
    assert progress.outputs == entry["outputs"]


@pytest.mark.parametrize(
    ("name", "file", "mime_type"),
    [
        ("audio", "sound_00001.flac", "audio/flac"),
        ("mesh", "cube_00001_.glb", "model/gltf-binary"),
        ("text_file", "note_00001.txt", "text/plain"),
    ],
)
def test_recorded_file_of_another_kind_is_an_output(name: str, file: str, mime_type: str) -> None:
    progress, _, entry = events_of(name, "0.28.0")
    assert progress.outputs == entry["outputs"]
    [found] = result_of(entry["outputs"], prompt_id="p").files
    assert (found.filename, found.mime_type) == (file, mime_type)


def test_recorded_text_is_an_output() -> None:
    progress, _, entry = events_of("text", "0.28.0")
    assert progress.outputs == entry["outputs"]
    result = result_of(entry["outputs"], prompt_id="p")
    assert (list(result.files), result.texts) == ([], {"2": ("a lake\nat night",)})


@pytest.mark.parametrize(
    ("version", "name", "text"),
    [
        *(
            (version, "error_execution", "LoadImage (1): the file is not an image that can be read")
            for version in VERSIONS
        ),
        *(
            (version, name, "Another client interrupted the run on the server.")
            for version in VERSIONS
            for name in ("interrupted", "pending_deleted")
        ),
    ],
)
def test_recorded_failure_is_explained(version: str, name: str, text: str) -> None:
    progress, _, entry = events_of(name, version)
    assert progress.over
    failure = failure_in(entry)
    assert isinstance(failure, ComfyError)
    assert failure.detail == text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("error_missing_node", "NoSuchNode (2): this node is not installed on the server"),
        (
            "error_missing_model",
            "CheckpointLoaderSimple (1): the model 'nope.safetensors' is not installed on the server "
            "(input 'ckpt_name')",
        ),
        ("error_missing_input_file", "LoadImage (1): the file 'missing.png' is not on the server (input 'image')"),
        ("error_no_outputs", "The graph has no output node: add one that saves or previews something."),
        ("error_required_input_missing", "SaveImage (3): input 'images' is not connected"),
    ],
)
@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_refusal_is_explained(version: str, name: str, text: str) -> None:
    assert explain_refusal(recording(name, version)["http"][0]["response"]).detail == text


def test_recorded_cycle_is_explained() -> None:
    response = recording("error_cycle", "0.28.0")["http"][0]["response"]
    refused = ("ImageInvert (2): its links form a cycle", "ImageInvert (1): its links form a cycle")
    assert explain_refusal(response).detail == "; ".join(refused)
