"""The policy for tenant graphs refuses dangerous nodes and files outside the job."""

import json
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comfyrelay.comfyui.graphs.dangerous import DANGERS, danger_of
from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.graphs.policy import GraphPolicy
from comfyrelay.errors import GraphNotAllowed
from tests.support.graphs import invert, invert_file, invert_video
from tests.support.simulator_files import OBJECT_INFO_RECORDED

OWN = ("__IMG__", "{{clip}}")
LINK = ["3", 0]
TEXT = ["STRING", {}]


def autogrow(name: str, spec: list[Any]) -> list[Any]:
    return ["COMFY_AUTOGROW_V3", {"template": {"input": {"required": {name: spec}}, "prefix": name}}]


INFO: dict[str, Any] = {
    "LoadImage": {"input": {"required": {"image": [["a.png"], {"image_upload": True}]}}},
    "VHS_LoadVideo": {"input": {"required": {"video": [["a.mp4"], {"video_upload": True}]}}},
    "Frames": {"input": {"required": {"directory": ["STRING", {"vhs_path_extensions": []}]}}},
    "OpenThing": {"input": {"required": {"image": TEXT, "image_path": TEXT, "imagePath": TEXT, "save_dir": TEXT}}},
    "Checkpoint": {"input": {"required": {"ckpt_name": [["sd/xl.safetensors"]], "kind": [["a", "b"]]}}},
    "Style": {"input": {"required": {"style_file": [["old.csv"]], "file_format": [["png"]], "folder": [["mine"]]}}},
    "Typed": {
        "input": {
            "required": {"image": ["IMAGE"], "path": ["SPLINE"], "filenames": ["VHS_FILENAMES"]},
            "optional": {"files": ["GEMINI_INPUT_FILES"], "file_3d": ["FILE_3D_GLB,FILE_3D"]},
        }
    },
    "SaveImage": {"input": {"required": {"images": ["IMAGE"], "filename_prefix": TEXT}}},
    "Several": {
        "input": {
            "required": {"path": ["STRING,INT", {}], "file": ["INT, STRING", {}], "directory": ["PATH", {}]},
            "optional": {"video": ["STRING,VIDEO", {}], "url": ["COMFY_MATCHTYPE_V3", {}], "image": ["IMAGE,MASK"]},
        }
    },
    "Dynamic": {
        "input": {
            "required": {
                "src": [
                    "COMFY_DYNAMICCOMBO_V3",
                    {
                        "options": [
                            {"key": "file", "inputs": {"required": {"image": ["COMBO", {"image_upload": True}]}}},
                            {"key": "link", "inputs": {"optional": {"image": ["IMAGE"], "mask": ["MASK"]}}},
                            {"key": "many", "inputs": {"required": {"more": autogrow("path", TEXT)}}},
                        ]
                    },
                ],
                "images": autogrow("image", ["IMAGE"]),
                "names": autogrow("image", TEXT),
                "slot": ["COMFY_DYNAMICSLOT_V3", {"inputs": {"required": {"file_path": TEXT}}}],
            }
        }
    },
    "Format": {
        "input": {
            "required": {
                "format": [
                    "COMFY_DYNAMICCOMBO_V3",
                    {"options": [{"key": "mp4", "inputs": {"required": {"codec": [["h264"]], "crf": ["INT", {}]}}}]},
                ]
            }
        }
    },
    "Join": {"input": {"required": {"string_a": TEXT, "string_b": TEXT}}},
}


def node(class_type: str, **inputs: Any) -> Graph:
    return {"7": {"class_type": class_type, "inputs": inputs}}


def refusal(
    graph: Graph, policy: GraphPolicy | None = None, *, info: dict[str, Any] | None = None, is_effect: bool = False
) -> str | None:
    try:
        (policy or GraphPolicy()).check(graph, own=OWN, object_info=info, is_effect=is_effect)
    except GraphNotAllowed as error:
        return error.detail
    return None


class TestClasses:
    @pytest.mark.parametrize(
        ("class_type", "why"),
        [
            ("PyExec", "runs code"),
            ("Exec Python Code Script", "runs code"),
            ("SRL Eval", "runs code"),
            ("ACE_Expression_Eval", "runs code"),
            ("Shell Command", "runs code"),
            ("Terminal", "runs code"),
            ("JavascriptExecutor", "runs code"),
            ("Environment Variable", "reads data from the machine"),
            ("WebcamCaptureCV2", "reads data from the machine"),
            ("Load Image From Url (mtb)", "calls addresses"),
            ("HTTPPost", "calls addresses"),
            ("Send Http Request", "calls addresses"),
            ("SendToDiscordWebhook", "calls addresses"),
            ("CivitAI Downloader", "calls addresses"),
            ("VHS_LoadImagesPath", "reads or writes paths"),
            ("VHS_LoadVideoPath", "reads or writes paths"),
            ("VHS_LoadImages", "reads or writes paths"),
            ("Load Image Batch", "reads or writes paths"),
            ("Image Save", "reads or writes paths"),
            ("Save Text File", "reads or writes paths"),
            ("LoadText|pysssss", "reads or writes paths"),
            ("LoadImagesFromDir //Inspire", "reads or writes paths"),
            ("LoadImagesFromFolderKJ", "reads or writes paths"),
            ("easy imagesCountInDirectory", "reads or writes paths"),
            ("LoadImageOutput", "reads or writes paths"),
        ],
    )
    def test_dangerous_class_is_refused_by_name(self, class_type: str, why: str) -> None:
        sentence = refusal(node(class_type))
        assert sentence is not None
        assert sentence.startswith(f"{class_type} (7) is not allowed in your graphs: it {why}")
        assert "ask an administrator" in sentence

    @pytest.mark.parametrize(
        "class_type",
        [
            *("LoadImage", "LoadVideo", "LoadAudio", "SaveImage", "SaveVideo", "KSampler", "CLIPTextEncode"),
            *(
                "CheckpointLoaderSimple",
                "LoraLoader",
                "PreviewImage",
                "PreviewAny",
                "VHS_VideoCombine",
                "VHS_LoadVideo",
            ),
            *("SaveImageWebsocket", "StringConcatenate", "ImageScale", "ShowText|pysssss", "ControlNetApplyAdvanced"),
            *("DownloadAndLoadFlorence2Model", "LoadTextEncoderModel", "ImpactExecutionOrderController", "Softplus"),
            *("LTXDirector", "CreateShapeImageOnPath", "FaceDetailer", "UltimateSDUpscale", "easy fullLoader"),
        ],
    )
    def test_common_nodes_are_not_refused(self, class_type: str) -> None:
        assert refusal(node(class_type)) is None

    def test_danger_patterns_are_normalized_and_unique(self) -> None:
        words = [word for patterns in DANGERS.values() for word in patterns.split()]
        assert all(set(word.strip("*")) <= set(string.ascii_lowercase + string.digits) for word in words)
        assert [word for word in words if len(word.strip("*")) < 3] == []
        assert len(words) == len(set(words))

    def test_administrator_can_deny_and_allow_classes(self) -> None:
        policy = GraphPolicy(denied=["Preview*", "My [Node]"], allowed=["PyExec", "Load * From Path*"])
        assert "has denied it" in str(refusal(node("PreviewAny"), policy))
        assert "has denied it" in str(refusal(node("My [Node]"), policy))
        assert refusal(node("My N"), policy) is None
        assert refusal(node("PyExec"), policy) is None
        assert refusal(node("Load Image From Path [DVB]"), policy) is None
        assert refusal(node("PythonExec"), policy) is not None

    def test_allow_list_refuses_all_other_nodes(self) -> None:
        policy = GraphPolicy(mode="allow", allowed=["LoadImage", "Save*"], denied=["SaveLatent"])
        assert refusal(node("LoadImage", image="__IMG__"), policy) is None
        assert refusal(node("SaveImage"), policy) is None
        assert "is not on the administrator's list" in str(refusal(node("KSampler"), policy))
        assert "has denied it" in str(refusal(node("SaveLatent"), policy))

    def test_disabled_policy_refuses_nothing(self) -> None:
        policy = GraphPolicy(mode="off", denied=["*"])
        assert refusal(node("PyExec", path="/etc/passwd"), policy) is None
        assert policy.why_not("PyExec") is None

    @pytest.mark.parametrize("mode", ["deny", "allow", "off"])
    def test_shared_machine_refuses_foreign_files_in_every_mode(self, mode: Any) -> None:
        policy = GraphPolicy(mode=mode, allowed=["LoadImage"], is_shared=True)
        for name in ("secret.png", "x.png [output]", "/etc/passwd"):
            foreign = node("LoadImage", image=name)
            for is_effect in (False, True):
                found = refusal(foreign, policy, info=INFO, is_effect=is_effect)
                assert "which is not a file of this job" in str(found)

    def test_effect_graph_may_use_any_node(self) -> None:
        policy = GraphPolicy(denied=["PreviewAny"], is_shared=True)
        for graph in (node("PyExec", code="1"), node("PreviewAny"), node("OpenThing", directory=["3", 0])):
            assert refusal(graph, policy) is not None
            assert refusal(graph, policy, is_effect=True) is None


class TestPaths:
    @pytest.mark.parametrize(
        ("class_type", "name"),
        [
            ("LoadImage", "image"),
            ("VHS_LoadVideo", "video"),
            ("Frames", "directory"),
            ("OpenThing", "image"),
            ("OpenThing", "image_path"),
            ("OpenThing", "imagePath"),
            ("OpenThing", "save_dir"),
            ("OpenThing", "not_declared_file"),
            ("Checkpoint", "ckpt_name"),
            ("SaveImage", "filename_prefix"),
            ("Several", "path"),
            ("Several", "file"),
            ("Several", "directory"),
            ("Several", "video"),
            ("Several", "url"),
            ("Dynamic", "src"),
            ("Dynamic", "src.image"),
            ("Dynamic", "src.more.path0"),
            ("Dynamic", "src.more"),
            ("Dynamic", "names.image0"),
            ("Dynamic", "slot.file_path"),
            ("Dynamic", "slot.not_declared_file"),
        ],
    )
    def test_input_that_names_a_file_may_not_be_linked(self, class_type: str, name: str) -> None:
        graph = {**node(class_type, **{name: LINK}), "3": node("Join", string_a="/et", string_b="c/passwd")["7"]}
        sentence = refusal(graph, info=INFO)
        assert sentence is not None
        assert sentence.startswith(f"{class_type} (7): input '{name}' ")

    @pytest.mark.parametrize(
        ("class_type", "name"),
        [
            ("LoadImage", "image"),
            ("LoadVideo", "file"),
            ("VHS_LoadVideo", "video"),
            ("Unknown", "path"),
            ("Unknown", "image_path_2"),
            ("Unknown", "fileName"),
            ("Unknown", "base_url"),
            ("Unknown", "output_directory"),
            ("Unknown", "file_name_prefix"),
            ("Unknown", "filename_prefix"),
            ("LoraLoader", "lora_name"),
            ("Unknown", "IMAGEPATH"),
            ("Unknown", "imagepath"),
            ("Unknown", "imageurl"),
            ("Unknown", "path_a"),
            ("Unknown", "file_to_load"),
            ("Unknown", "paths_list"),
            ("Unknown", "src.file_path"),
        ],
    )
    def test_input_of_an_unknown_class_is_judged_by_its_name(self, class_type: str, name: str) -> None:
        assert refusal(node(class_type, **{name: LINK})) is not None
        # These are allowed: a prefix is replaced before the run, and a graph may name models.
        if name not in ("filename_prefix", "lora_name"):
            assert refusal(node(class_type, **{name: "elsewhere"})) is not None
            assert refusal(node(class_type, **{name: ["elsewhere"]})) is not None
        assert refusal(node(class_type, **{name: "__IMG__"})) is None

    @pytest.mark.parametrize(
        ("class_type", "inputs"),
        [
            ("Typed", {"image": LINK, "path": LINK, "filenames": LINK, "files": LINK, "file_3d": LINK}),
            ("Checkpoint", {"kind": LINK, "ckpt_name": "sd/xl.safetensors"}),
            ("Style", {"style_file": "old.csv", "file_format": "png"}),
            ("SaveImage", {"images": LINK, "filename_prefix": "../../a/b"}),
            ("Unknown", {"image": LINK, "video": LINK, "text": LINK, "path_type": LINK, "file_format": "png"}),
            ("Unknown", {"font_file": "Roboto-Bold.ttf", "overwrite_file": True, "subfolder": "", "filenames": LINK}),
            ("Unknown", {"model_path": "sd/xl.safetensors"}),
            ("OpenThing", {"image": "iVBORw0KGgo" * 1000}),
            ("OpenThing", {"save_dir": "", "image_path": ""}),
            ("Several", {"image": LINK, "path": 7}),
            ("Dynamic", {"src": "link", "src.mask": LINK, "images.image0": LINK, "images.image1": LINK, "images": {}}),
            ("Dynamic", {"src": "file", "src.image": "__IMG__", "names.image0": "__IMG__"}),
            ("Format", {"format": "mp4", "format.codec": "h264", "format.crf": LINK, "filename_prefix": "x"}),
            ("Format", {"format": LINK}),
            # Savers and loaders of public node packs
            (
                "Unknown",
                {
                    "filename_delimiter": "_",
                    "filename_number_padding": 4,
                    "file_extension": "png",
                    "path_type": "relative",
                    "profile": "main",
                    "color_profile": LINK,
                    "curl": "tight",
                    "base_url": "",
                },
            ),
            ("Unknown", {"lora_path": "styles/input.safetensors", "unet_path": "temp.gguf", "file_3d": LINK}),
            ("Unknown", {"text": "a path to a file", "prompt": "output/or input, and/or path", "style": "./sketch"}),
            ("Join", {"string_a": "path: a winding road", "string_b": "files/folders everywhere, 4k"}),
        ],
    )
    def test_inputs_that_name_no_file_are_allowed(self, class_type: str, inputs: dict[str, Any]) -> None:
        info = INFO if class_type in INFO else None
        assert refusal(node(class_type, **inputs), info=info) is None

    @pytest.mark.parametrize(
        ("class_type", "inputs"),
        [
            ("Style", {"style_file": "new.csv"}),
            ("Style", {"folder": "mine"}),
            ("OpenThing", {"image": "secret"}),
            ("OpenThing", {"image_path": "notes.txt"}),
            ("OpenThing", {"image_path": "__IMG__ [output]"}),
            ("OpenThing", {"image_path": "comfyrelay/__IMG__"}),
            ("OpenThing", {"image_path": {"__value__": "x"}}),
            ("OpenThing", {"image_path": "output/x.safetensors"}),
            ("OpenThing", {"image_path": "x.safetensors"}),
            ("OpenThing", {"checkpoint_file": "OUTPUT/x.safetensors"}),
            ("OpenThing", {"checkpoint_file": "./temp\\x.ckpt"}),
            ("Several", {"path": "secret.txt"}),
            ("Several", {"directory": "."}),
            ("Dynamic", {"src.image": "a.png [output]"}),
            ("Dynamic", {"src.image": ""}),
            ("Dynamic", {"src.more.path0": "secret"}),
            ("Join", {"string_a": "output/*"}),
            ("Join", {"string_a": "**/x"}),
            ("Join", {"string_a": "a.png [temp]"}),
            ("Join", {"string_a": "/etc/passwd"}),
        ],
    )
    def test_file_name_from_outside_the_job_is_refused(self, class_type: str, inputs: dict[str, Any]) -> None:
        sentence = refusal(node(class_type, **inputs), info=INFO)
        assert sentence is not None
        assert f"{class_type} (7): input '{next(iter(inputs))}' names " in sentence

    @pytest.mark.parametrize(
        ("class_type", "name"), [("LoadImage", "image"), ("LoadVideo", "file"), ("Unknown", "image_path")]
    )
    def test_empty_file_name_is_refused(self, class_type: str, name: str) -> None:
        assert refusal(node(class_type, **{name: ""})) is not None

    @pytest.mark.parametrize("value", [{"image": "secret"}, ["file", "secret"], {"image": ["3", 0]}, LINK])
    def test_object_in_place_of_a_choice_is_refused(self, value: Any) -> None:
        assert "may name any file" in str(refusal(node("Dynamic", src=value), info=INFO))

    def test_every_link_form_of_comfyui_is_recognized(self) -> None:
        for link in (["3", 0], ["3", True], ["3", 0.0]):
            assert "is linked" in str(refusal(node("Checkpoint", ckpt_name=link), info=INFO))

    def test_dynamic_prompts_may_have_patterns(self) -> None:
        assert refusal(node("Join", string_a="__animals/*__", string_b="a *big* cat and/or dog")) is None

    def test_graphs_with_recorded_definitions_are_judged(self) -> None:
        for info in (json.loads(OBJECT_INFO_RECORDED.read_text("utf-8")), None):
            for graph in (invert(), invert_file("__IMG__"), invert_video("{{clip}}")):
                assert refusal(graph, info=info) is None
            for graph in (invert_file("example.png"), invert_video("clip.mp4")):
                assert refusal(graph, info=info) is not None


class TestHostileGraphs:
    JSON = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=10,
    )
    NAMES = st.text() | st.sampled_from(["filename_prefix", "image", "path", "Path1", "url", "", "prefix", "ckpt_name"])
    VALUES = JSON | st.sampled_from([LINK, "__IMG__", "[output]", "*/", "..", ["", 1.5]])
    NODES = st.fixed_dictionaries(
        {
            "class_type": st.text(min_size=1) | st.sampled_from([*INFO, "PyExec", "*", "[", "x" * 300]),
            "inputs": st.dictionaries(NAMES, VALUES, max_size=4),
        }
    )

    @given(
        st.dictionaries(st.text(), NODES, max_size=4),
        st.dictionaries(st.sampled_from([*INFO, "x"]), JSON, max_size=3),
        st.sampled_from(["deny", "allow"]),
        st.lists(st.text() | st.sampled_from(["*", "**", "a*b*", "["]), max_size=3),
    )
    def test_no_graph_crashes_the_policy(
        self, graph: Graph, info: dict[str, Any], mode: Any, patterns: list[str]
    ) -> None:
        sentence = refusal(graph, GraphPolicy(mode=mode, allowed=patterns, denied=patterns[1:]), info={**INFO, **info})
        assert sentence is None or len(sentence) < 10_000
        json.dumps(sentence)

    @pytest.mark.parametrize(
        "letter", ["a", "A", "*", "/", ".", "..", "[", "~", " ", "\n", "__IMG__", "aA", "/*", "\\"]
    )
    def test_check_time_is_linear_in_the_text_length(self, letter: str) -> None:
        # Backtracking would take days for these texts on any machine.
        text = letter * 200_000
        refusal(node(text, **{text: text, "path": text, "image": text}), info=INFO)
        refusal(node("OpenThing", **{text: LINK, "image_path": text}), info=INFO)
        danger_of(text)

    def test_list_of_problems_is_truncated(self) -> None:
        graph = {str(number): node("PyExec" * 20, path="/etc")["7"] for number in range(50_000)}
        assert len(str(refusal(graph))) < 5_000
