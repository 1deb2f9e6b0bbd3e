"""A graph may name only models and files of its job; prompts are never treated as files."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comfyrelay.comfyui.graphs.foreign_files import foreign_files
from comfyrelay.comfyui.graphs.graph import Graph
from tests.support.graphs import invert, invert_file, invert_video
from tests.support.simulator_files import OBJECT_INFO_RECORDED

OWN = ("__IMG__", "__IMG2__", "{{clip}}")
INFO: dict[str, Any] = {
    "LoadImage": {"input": {"required": {"image": [["a.png"], {"image_upload": True}]}}},
    "LoadVideo": {"input": {"required": {"file": ["COMBO", {"video_upload": True, "options": []}]}}},
    "LoadAudio": {"input": {"required": {"audio": [[], {"audio_upload": True}]}}},
    "Load3D": {"input": {"optional": {"model_file": [[], {"file_upload": True}]}}},
    "LoadAny": {"input": {"required": {"any": [[], {"upload": True}]}}},
    "LoadFolder": {"input": {"required": {"directory": ["STRING", {"vhs_path_extensions": []}]}}},
    "LoadLatent": {"input": {"required": {"latent": [["x.latent"]]}}},
    "PickFolder": {"input": {"required": {"folder": [["comfyrelay"]]}}},
    "SaveAs": {"input": {"required": {"suffix": [[".png", ".webp"]], "format": [["video/h264-mp4"]]}}},
    "Checkpoint": {"input": {"required": {"ckpt_name": [["sd/xl.safetensors"]]}}},
    "Text": {"input": {"required": {"text": ["STRING", {"multiline": True}]}}},
}


def node(class_type: str, **inputs: Any) -> Graph:
    return {"7": {"class_type": class_type, "inputs": inputs}}


def problems(graph: Graph) -> list[str]:
    return foreign_files(graph, own=OWN, object_info=INFO)


UPLOADS = [
    ("LoadImage", "image"),
    ("LoadVideo", "file"),
    ("LoadAudio", "audio"),
    ("Load3D", "model_file"),
    ("LoadAny", "any"),
    ("LoadFolder", "directory"),
]


class TestUploadInputs:
    @pytest.mark.parametrize(("class_type", "name"), UPLOADS)
    def test_file_of_the_job_is_allowed(self, class_type: str, name: str) -> None:
        for own in OWN:
            assert problems(node(class_type, **{name: own})) == []

    @pytest.mark.parametrize(
        "value",
        [
            "example.png",
            "anything",
            "",
            "comfyrelay/0123.png",
            "comfyrelay/__IMG__",
            "__IMG__ [output]",
            "../__IMG__",
            "__IMG__.png",
            "__IMG__\n",
            "https://example.com/cat.png",
            ["4", 0],
            ["__IMG__", "example.png"],
            {"__value__": "example.png"},
        ],
    )
    def test_other_upload_value_is_refused(self, value: Any) -> None:
        for class_type, name in UPLOADS:
            (sentence,) = problems(node(class_type, **{name: value}))
            assert sentence.startswith(f"{class_type} (7): input '{name}' ")
            assert "Make it a property" in sentence


class TestChoices:
    @pytest.mark.parametrize("value", ["x.latent", "my drawing.png", "CLIP.MP4", "x.latent [output]", "__IMG__.png"])
    def test_file_of_the_input_folder_is_refused(self, value: str) -> None:
        assert len(problems(node("LoadLatent", latent=value))) == 1

    @pytest.mark.parametrize("value", ["comfyrelay", "comfyrelay/job-1-abcdefgh"])
    def test_upload_folder_is_refused(self, value: str) -> None:
        assert len(problems(node("PickFolder", folder=value))) == 1

    def test_models_and_other_choices_are_allowed(self) -> None:
        assert problems(node("Checkpoint", ckpt_name="sd/xl.safetensors")) == []
        assert problems(node("SaveAs", suffix=".png", format="video/h264-mp4")) == []
        assert problems(node("LoadLatent", latent="__IMG__")) == []


PATHS = [
    "/etc/passwd",
    "/",
    "/root",
    "/home/me/my file",
    "/secret notes.txt",
    "//server/share",
    "C:\\Users\\me",
    "d:/x",
    "\\\\server\\share",
    "~/x",
    "~",
    "~root/.ssh",
    "file:///etc/passwd",
    "FILE:/etc/passwd",
    "see file:///etc/passwd",
    "..",
    "../x",
    "a/../b",
    "a/..",
    "..\\x",
    "a\\..\\b",
    "x, ../../etc/passwd",
    "embedding:../../x",
    "(../x:1.2)",
    "http://../../etc/passwd",
    "sd/../../xl.safetensors",
    "/models/xl.safetensors",
    "x [input]",
    "x [output]",
    "x [temp]",
    "x.png[output]",
    "secret.png",
    "'secret.png'",
    ' "/etc/passwd" ',
    "folder/my secret.webm",
    "folder\\secret.latent",
    "comfyrelay",
    "output/comfyrelay/1/x",
    "comfyrelay/job-1-abcdefgh/0123.bin",
    "a line\n/etc/passwd\nanother",
    "../__IMG__",
    "/etc/__IMG__",
    "__IMG__/../x",
    "__IMG__ [output]",
    "__IMG__.png",
]
PROMPTS = [
    "",
    " ",
    "a cat",
    "/imagine a cat and/or a dog",
    "// a note to myself",
    "a photo like cat.png",
    "wait... what?!",
    "so.. and/or.. or",
    "1../2",
    "50/50 light, 16:9, f/1.8, 24 fps",
    "he said: 'I'll be back.' \"ok\"",
    "miku \\(vocaloid\\), (smile:1.2), [cat:dog:0.5], {red|blue}",
    "<lora:detail/tweaker:0.8> embedding:bad/hands, __animals/cats__",
    "[input] is what goes in",
    "profile: a portrait",
    "~ calm ~",
    "D: oh no",
    "https://example.com/cat.png",
    "euler",
    "sd/xl.safetensors",
    "models\\lora.safetensors",
    "video/h264-mp4",
    ".png",
    "what does comfyrelay do?",
    "look at __IMG__, please",
    "__IMG__",
    "styles/__IMG__",
    "/9j/" + "4AAQSkZJRg/" * 1000,
    "🐈/🐕 — „schön“, 猫。",
]


class TestTexts:
    @pytest.mark.parametrize("text", PATHS)
    def test_path_is_refused(self, text: str) -> None:
        for class_type in ("Text", "NotKnownHere"):
            (sentence,) = problems(node(class_type, text=text))
            assert sentence.startswith(f"{class_type} (7): input 'text' names ")
            assert "Make it a property" in sentence

    @pytest.mark.parametrize("text", PROMPTS)
    def test_prompt_is_allowed(self, text: str) -> None:
        assert problems(node("Text", text=text)) == []
        assert problems(node("NotKnownHere", text=text)) == []

    def test_nested_texts_are_checked(self) -> None:
        deep: Any = "/etc/passwd"
        for _ in range(5000):
            deep = [{"more": deep}]
        assert len(problems(node("Text", text={"a": ["x", "secret.png"]}, deep=deep))) == 2

    def test_links_and_numbers_are_not_texts(self) -> None:
        assert problems(node("Text", text=["/etc/passwd", 0], seed=2**64, flag=True, none=None)) == []

    def test_prefix_of_savers_is_replaced_before_the_run(self) -> None:
        assert problems(node("SaveImage", filename_prefix="../../x.png")) == []
        assert len(problems(node("SaveImage", prefix="../../x.png"))) == 1

    def test_long_text_is_shown_in_part(self) -> None:
        (sentence,) = problems(node("Text", text="/" + "x" * 3000))
        assert len(sentence) < 300

    def test_placeholder_may_look_like_a_file(self) -> None:
        text = node("Text", text="look at in/photo.png")
        assert foreign_files(text, own=("in/photo.png",), object_info=INFO) == []
        assert len(foreign_files(text, own=(), object_info=INFO)) == 1

    def test_placeholder_without_a_file_of_the_job_is_refused(self) -> None:
        assert foreign_files(node("Text", text="a cat"), own=(), object_info={}) == []
        assert len(foreign_files(node("LoadImage", image="__IMG__"), own=(), object_info=INFO)) == 1
        assert len(foreign_files(node("Text", text="/etc/x"), own=("",), object_info=INFO)) == 1


WORDS = st.text(st.characters(categories=["L", "N", "So"], include_characters="'-_#%&*+~"), min_size=1)
ENDS = st.sampled_from(["", ",", ".", "...", "!", "?!", ":", ";", '"', ")", "]", " —", "/or", " / ", ":1.2)", "\n"])
STARTS = st.sampled_from(["", "(", "[", '"', "{", "<"])


@given(st.lists(st.tuples(STARTS, WORDS, ENDS), min_size=2))
def test_ordinary_prompts_pass(parts: list[tuple[str, str, str]]) -> None:
    prompt = "An image of " + " ".join(start + word + end for start, word, end in parts)
    assert problems(node("Text", text=prompt.replace("~/", "~"))) == []


@given(
    st.sampled_from([text for text in PATHS if "\n" not in text]),
    st.sampled_from(["", " ", "\n", "\t", '"', "'", " '"]),
)
def test_blanks_and_quotes_around_a_path_do_not_hide_it(path: str, around: str) -> None:
    assert problems(node("Text", text=f"{around}{path}{around[::-1]}")) != []


def test_recorded_definitions_mark_the_upload_inputs() -> None:
    info = json.loads(OBJECT_INFO_RECORDED.read_text("utf-8"))
    for graph, count in (
        (invert(), 0),
        (invert_file("__IMG__"), 0),
        (invert_file("example.png"), 1),
        (invert_video("{{clip}}"), 0),
        (invert_video("clip.mp4"), 1),
    ):
        assert len(foreign_files(graph, own=OWN, object_info=info)) == count
