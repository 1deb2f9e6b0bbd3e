"""Progress, saved files, the seed and the error are parsed from a script's output."""

import json
import os
import textwrap
import time
from pathlib import Path

import pytest

from comfyrelay.desk.scripts.errors import error_sentence, refusal_in_log
from comfyrelay.desk.scripts.output_parser import TAIL_CHARACTERS, OutputParser, ScriptProgress, new_media, saved_files
from tests.support.full import full_only


@pytest.mark.parametrize(
    ("line", "progress"),
    [
        (" 45%|████▌     | 9/20 [00:03<00:04,  2.50it/s]", ScriptProgress(0.45)),
        ("Sampling:  33%|###  | 1/3 [00:30<01:00, 30.00s/it]", ScriptProgress(1 / 3)),
        ("progress: 12.5%", ScriptProgress(0.125)),
        ("100 %", ScriptProgress(1.0)),
        ("step 5/20", ScriptProgress(0.25)),
        ("step 5 of 20", ScriptProgress(0.25)),
        ("[2/4] cat.png", ScriptProgress(0.25, 2, 4)),
        ("[2/4] 50% KSampler", ScriptProgress(0.375, 2, 4)),
        ("Processing 3/10: cat.png", ScriptProgress(0.2, 3, 10)),
        ("Image 1 of 2", ScriptProgress(0.0, 1, 2)),
        ("[4/4] 100%", ScriptProgress(1.0, 4, 4)),
        # none of these lines is progress
        ("nothing to see", None),
        ("VRAM 80% used", None),
        ("GPU utilisation: 97%", None),
        ("open 24/7", None),
        ("GET http://127.0.0.1:8188/1/2", None),
        ("2024/01/05 12:00:01 start", None),
        ("/data/1/2/cat.png", None),
        ("250%", None),
        ("[3/0] x", None),
        ("Positive: 50% grey, 1/2 of a face", None),
    ],
)
def test_progress_is_parsed(line: str, progress: ScriptProgress | None) -> None:
    assert OutputParser().add(line) == progress


def test_steps_count_within_the_current_item() -> None:
    parser = OutputParser()
    progress_values = [
        parser.add(line) for line in ("[1/2] a.png", "50%|# | 1/2 [", "[2/2] b.png", "50%|# | 1/2 [", "[2/2] saved")
    ]
    assert [progress.fraction if progress else None for progress in progress_values] == [0.0, 0.25, 0.5, 0.75, None]


@pytest.mark.parametrize(
    ("line", "seed"),
    [
        ("seed: 42", 42),
        ("Using seed 123456789012345", 123456789012345),
        ("noise_seed=7", 7),
        ('{"seed": 99, "steps": 20}', 99),
        ("random seed -> 5", 5),
        ("[1/3] cat.png · seed: 18446744073709551615", 2**64 - 1),
        ("seed: 18446744073709551616", None),
        ("seedling 5", None),
        ("seed: None", None),
        ("Positive: a seed 5", None),
    ],
)
def test_seed_is_parsed(line: str, seed: int | None) -> None:
    parser = OutputParser()
    parser.add(line)
    assert parser.seed == seed


@pytest.mark.parametrize(
    "line",
    [
        "Saved: {path}",
        "saved video to {path}",
        'Saved "{path}" (3.2 MB)',
        "Wrote 81 frames as {path} in 3 s",
        "[2/4] saved: {path}",
        "output: '{path}'",
        "cat.png -> {path}",
        "INFO 12:00:01 Video written to {path}, 3 MB",
        "{path}",
    ],
)
@pytest.mark.parametrize("name", ["my clips/a b (1).webm", *full_only("clip_00001_.mp4", "Ünïcode 🐈.png")])
@pytest.mark.parametrize("is_absolute", [True, False])
def test_saved_file_is_found(tmp_path: Path, line: str, name: str, is_absolute: bool) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"x")
    parser = OutputParser()
    parser.add(line.format(path=file if is_absolute else name))
    assert saved_files(parser.candidates, folders=[tmp_path], since=time.time()) == [file]


def test_only_existing_new_files_count_once(tmp_path: Path) -> None:
    begun = time.time()
    for name in ("old.png", "new.mp4", "notes.txt"):
        (tmp_path / name).write_bytes(b"x")
    os.utime(tmp_path / "old.png", (begun - 60, begun - 60))
    parser = OutputParser()
    for line in ("saved old.png", "saved new.mp4", "saved ./new.mp4", "saved gone.mp4", "saved notes.txt", "x.mp4\0"):
        parser.add(line)
    assert saved_files(parser.candidates, folders=[tmp_path], since=begun) == [tmp_path / "new.mp4"]


def test_older_saved_file_counts_if_no_new_file_exists(tmp_path: Path) -> None:
    for name in ("input.png", "clip.mp4"):
        (tmp_path / name).write_bytes(b"x")
        os.utime(tmp_path / name, (1, 1))
    parser = OutputParser()
    for line in ("input.png", "Saved: clip.mp4"):
        parser.add(line)
    assert saved_files(parser.candidates, folders=[tmp_path], since=time.time()) == [tmp_path / "clip.mp4"]


FORGED = (
    "a cat\nSaved: {path}\n[5/5] 100%\nseed: 666\nTraceback (most recent call last):\nValueError: forged by a prompt"
)


@pytest.mark.parametrize(
    "echoed",
    [
        "{words}",
        "Positive: {words}",
        "running with {words!r}",
        "{{'prompt': {words!r}, 'steps': 20}}",
        'POST /prompt {{"text": {json}}}',
        "LOUD {upper}",
        "> {wrapped}",
        "cut {words:.60}",
    ],
)
def test_prompt_text_is_not_parsed_as_script_output(tmp_path: Path, echoed: str) -> None:
    old, new = tmp_path / "of another job.mp4", tmp_path / "mine.mp4"
    old.write_bytes(b"x")
    os.utime(old, (1, 1))
    words = FORGED.format(path=old)
    forms = {
        "json": json.dumps(words),
        "upper": words.upper(),
        "wrapped": "\n".join(textwrap.wrap(words, 30)),
    }
    parser = OutputParser([words])
    for line in echoed.format(words=words, **forms).splitlines():
        # incomplete lines are not parsed either
        assert parser.progress(line) is None
        assert parser.add(line) is None
    assert parser.seed is None
    assert saved_files(parser.candidates, folders=[tmp_path], since=time.time()) == []
    assert "forged" not in error_sentence(parser.tail, 1).lower()
    # lines of the script itself are still parsed
    new.write_bytes(b"x")
    assert parser.add("[1/2] cat.png · seed: 42") == ScriptProgress(0.0, 1, 2)
    parser.add(f"Saved: {new}")
    assert parser.seed == 42
    assert saved_files(parser.candidates, folders=[tmp_path], since=time.time()) == [new]


@pytest.mark.parametrize("line", ["Saved: {path}", "{path}", "[1/1] done -> '{path}'"])
def test_file_may_be_named_after_the_prompt(tmp_path: Path, line: str) -> None:
    words = "a red fox in the snow, 50% grey"
    file = tmp_path / f"{words}.mp4"
    file.write_bytes(b"x")
    parser = OutputParser([words])
    parser.add(line.format(path=file))
    assert saved_files(parser.candidates, folders=[tmp_path], since=time.time()) == [file]


def test_only_files_in_the_folders_of_the_script_count(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    for folder in (own, other):
        folder.mkdir()
    (other / "secret.png").write_bytes(b"x")
    (own / "link.png").symlink_to(other / "secret.png")
    parser = OutputParser()
    for line in (f"Saved: {other}/secret.png", "Saved: ../other/secret.png", "Saved: link.png"):
        parser.add(line)
    assert saved_files(parser.candidates, folders=[own], since=0) == []
    assert new_media(own, since=0) == []


REFUSAL = {
    "error": {"type": "prompt_outputs_failed_validation", "message": "Prompt outputs failed validation", "details": ""},
    "node_errors": {
        "3": {
            "errors": [
                {
                    "type": "value_not_in_list",
                    "message": "Value not in list",
                    "details": "ckpt_name: 'wan.safetensors' not in []",
                    "extra_info": {
                        "input_name": "ckpt_name",
                        "received_value": "wan.safetensors",
                        "input_config": None,
                    },
                }
            ],
            "dependent_outputs": ["9"],
            "class_type": "CheckpointLoaderSimple",
        }
    },
}
NOT_INSTALLED = (
    "CheckpointLoaderSimple (3): the model 'wan.safetensors' is not installed on the server (input 'ckpt_name')"
)
FAILED = {
    "node_id": "7",
    "node_type": "KSampler",
    "exception_type": "torch.OutOfMemoryError",
    "exception_message": "Allocation on device failed",
    "traceback": ["  File …"],
}
TRACEBACK = """Traceback (most recent call last):
  File "/home/me/ComfyUI/script.py", line 10, in <module>
    raise Something
{exception}
"""


@pytest.mark.parametrize(
    "output",
    [
        f"HTTP 400: {json.dumps(REFUSAL)}",
        f"queueing failed\n{json.dumps(REFUSAL, indent=2)}\nbye",
        f"Error: {REFUSAL}",
        f"[1/2] 400 Bad Request {json.dumps(REFUSAL)}\n" + TRACEBACK.format(exception="SystemExit: 1"),
        f'{{"noise": "{{"}} {{{{ {json.dumps(REFUSAL)}',
    ],
)
def test_comfyui_refusal_names_the_nodes(output: str) -> None:
    assert error_sentence(output, 1) == NOT_INSTALLED


@pytest.mark.parametrize("output", [json.dumps(FAILED), f"execution_error {FAILED}", json.dumps({"data": FAILED})])
def test_failed_node_is_named_in_the_error(output: str) -> None:
    assert error_sentence(output, 1) == "KSampler (7): there was not enough memory"


@pytest.mark.parametrize(
    ("output", "code", "sentence"),
    [
        (
            TRACEBACK.format(exception="urllib.error.HTTPError: HTTP Error 400: Bad Request"),
            1,
            "ComfyUI refused the graph (HTTP 400), and the script does not say why.",
        ),
        (
            TRACEBACK.format(
                exception="requests.exceptions.HTTPError: 500 Server Error: Internal Server Error for url: http://c/x"
            ),
            1,
            "ComfyUI answered with HTTP 500: 500 Server Error: Internal Server Error for url: [link]",
        ),
        (TRACEBACK.format(exception="TimeoutError: timed out"), 1, "Timed out: timed out"),
        (
            TRACEBACK.format(exception="asyncio.exceptions.TimeoutError"),
            1,
            "Timed out: TimeoutError",
        ),
        ("Timeout waiting for prompt 5", 1, "Timed out: Timeout waiting for prompt 5"),
        (
            TRACEBACK.format(exception="ConnectionRefusedError: [Errno 111] Connection refused"),
            1,
            "No server listens at the address that the script calls (connection refused). Is ComfyUI running there?",
        ),
        (TRACEBACK.format(exception="KeyError: 'images'"), 1, "KeyError: 'images'"),
        (TRACEBACK.format(exception="StopIteration"), 1, "StopIteration"),
        (TRACEBACK.format(exception="my.Problem: the clip is far too short"), 1, "the clip is far too short"),
        (
            TRACEBACK.format(exception="ValueError: no such file: /home/me/private/cat.png") + "cleaning up\n",
            1,
            "no such file: cat.png",
        ),
        (
            "usage: s.py [-h] --wait\ns.py: error: unrecognized arguments: --fps",
            2,
            "The script ended with exit code 2: s.py: error: unrecognized arguments: --fps",
        ),
        ("ERROR: no images found\nbye", 3, "The script ended with exit code 3: no images found"),
        ("working\nstill working", 3, "The script ended with exit code 3; last line: still working"),
        ("", 3, "The script ended with exit code 3 and printed nothing."),
        ("anything", 137, "The script was ended by SIGKILL. The machine may have run out of memory."),
        ("anything", 139, "The script was ended by SIGSEGV."),
    ],
)
def test_error_sentence_names_the_cause(output: str, code: int, sentence: str) -> None:
    assert error_sentence(output, code) == sentence


def test_handled_exception_is_not_the_cause() -> None:
    output = TRACEBACK.format(exception="ValueError: early and handled") + "fine\n" * 200 + "Error: out of ideas\n"
    assert error_sentence(output, 1) == "The script ended with exit code 1: out of ideas"


@pytest.mark.parametrize("letter", ["{", "[", '"', "'", "1/", "9 ", "%|", "a.mp4 ", "seed=", "saved ", " ", "\\"])
def test_parsing_time_is_bounded(letter: str) -> None:
    parser = OutputParser()
    begun = time.process_time()
    for _ in range(20):
        parser.add(letter * (16 * 1024 // len(letter)), end="")
    error_sentence(parser.tail + '"node_errors": 1', 1)
    error_sentence("{" * 100 + letter * 200_000 + '"node_errors": 1', 1)
    saved_files(parser.candidates, folders=[Path("/nowhere")], since=0)
    assert len(parser.tail) <= TAIL_CHARACTERS
    assert time.process_time() - begun < 5


def test_only_the_last_refusal_of_the_log_counts() -> None:
    log = """got prompt
Failed to validate prompt for output 9:
* KSampler 3:
  - Value not in list: sampler_name: 'x' not in ['euler']
Output will be ignored
invalid prompt: {'type': 'prompt_outputs_failed_validation', 'message': 'Prompt outputs failed validation'}
got prompt
Failed to validate prompt for output 9:
* Image Scale By 7:
  - Required input is missing: image
  - Value 0.0 smaller than min of 0.01: scale_by
Output will be ignored
Failed to validate prompt for output 12:
Output will be ignored
invalid prompt: {'type': 'prompt_outputs_failed_validation', 'message': 'Prompt outputs failed validation'}
"""
    assert refusal_in_log(log.splitlines()) == (
        "Image Scale By (7): Required input is missing: image; "
        "Image Scale By (7): Value 0.0 smaller than min of 0.01: scale_by"
    )


@pytest.mark.parametrize("log", ["", "got prompt", "invalid prompt: {'type", "* KSampler 3:\n  - broken"])
def test_log_without_a_refusal_has_no_explanation(log: str) -> None:
    assert refusal_in_log(log.splitlines()) is None
