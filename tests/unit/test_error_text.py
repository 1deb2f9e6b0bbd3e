"""When a job fails, the user sees a readable error message."""

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comfyrelay.error_text import FALLBACK, MAX_LENGTH, user_sentence

TRACEBACK = """Traceback (most recent call last):
  File "/opt/comfyui/execution.py", line 518, in execute
    output = await get_output_data(obj)
  File "/opt/comfyui/nodes.py", line 12, in run
    raise RuntimeError("CUDA out of memory")
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
"""


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        ({"exception_message": "No frames."}, "No frames."),
        ({"error_message": "No frames."}, "No frames."),
        ({"error_message": "Worse.", "exception_message": "Better."}, "Better."),
        ({"error": {"exception_message": "Nested."}}, "Nested."),
        ([{"node": 1}, {"error_message": "In a list."}], "In a list."),
        (["execution_error", {"exception_message": "As ComfyUI sends it.\n"}], "As ComfyUI sends it."),
        ({"errors": [{"error_message": "Nested in a list."}]}, "Nested in a list."),
        ({"exception_message": None, "error_message": "Second."}, "Second."),
        ({"exception_message": "  \n", "error_message": "Not blank."}, "Not blank."),
        ({"error_message": json.dumps({"exception_message": "Twice encoded."})}, "Twice encoded."),
        ("Just a JSON string.", "Just a JSON string."),
    ],
)
def test_message_is_found_in_json(raw: object, sentence: str) -> None:
    assert user_sentence(json.dumps(raw)) == sentence


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        ('{"node_id": "1", "exception_message": "Bad \\"size\\".", "traceb', 'Bad "size".'),
        ('{"exception_message": "Cut in the mid', "Cut in the mid"),
        ("failed: {'error_message': 'from repr', 'x': 1}", "from repr"),
        ('job 3: exception_message="one \\u00e9 line\\nand another"', "one é line"),
        (TRACEBACK, "CUDA out of memory. Tried to allocate 2.00 GiB."),
        ("ValueError: first\n\nValueError: last", "last"),
    ],
)
def test_message_is_found_in_text(raw: str, sentence: str) -> None:
    assert user_sentence(raw) == sentence


def test_first_meaningful_line_is_the_fallback() -> None:
    assert user_sentence("\n  \n---\nThe server is full.\nSecond line.") == "The server is full."


@pytest.mark.parametrize("raw", [None, "", " \n\t ", "{}", "---", "\x00\x1b[0m", "Traceback (most recent call last):"])
def test_empty_error_becomes_processing_failed(raw: str | None) -> None:
    assert user_sentence(raw) == FALLBACK == "Processing failed."


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        ("cannot identify image file '/comfyui/input/bad.png'", "cannot identify image file 'bad.png'"),
        ("cannot open /home/jane/My Models/a.safetensors", "cannot open a.safetensors"),
        ("cannot open '/srv/my models/a b.png'", "cannot open 'a b.png'"),
        ("cannot copy /srv/a.png to /mnt/b.png", "cannot copy a.png to b.png"),
        ("missing ~/models/x.ckpt", "missing x.ckpt"),
        ("missing ../models/x.ckpt", "missing x.ckpt"),
        ("missing models/checkpoints/x.ckpt.", "missing x.ckpt."),
        (r"missing C:\Program Files\ComfyUI\x.ckpt, sorry", "missing x.ckpt, sorry"),
        (r"missing \\nas\share\x.ckpt", "missing x.ckpt"),
        ("missing file:///srv/data/x.ckpt", "missing x.ckpt"),
        ("path=/etc/comfy/x.toml: no such file", "path=x.toml: no such file"),
        ('In File "/opt/comfy/nodes.py", line 3, in run: boom', "In: boom"),
        ("step 3/10 and/or N/A at 1 / 2", "step 3/10 and/or N/A at 1 / 2"),
        ("width/height/depth differ on 2024/01/02", "width/height/depth differ on 2024/01/02"),
        ("read/write/execute: 1/2/3 or 1.5/2.5/3.5", "read/write/execute: 1/2/3 or 1.5/2.5/3.5"),
    ],
)
def test_path_is_reduced_to_its_file(raw: str, sentence: str) -> None:
    assert user_sentence(raw) == sentence


@pytest.mark.parametrize(
    "raw",
    [
        "GET https://bucket.s3.amazonaws.com/t/1/in.png?X-Amz-Signature=hunter2&x=1 failed",
        "GET http://user:hunter2@10.0.0.7:8188/view failed",
        "signed with X-Amz-Signature=hunter2 failed",
        "header X-Amz-Security-Token: hunter2 failed",
        "Authorization: Bearer hunter2 failed",
        "token=hunter2 failed",
    ],
)
def test_links_and_secrets_are_removed(raw: str) -> None:
    sentence = user_sentence(raw)
    assert "hunter2" not in sentence
    assert "://" not in sentence
    assert sentence.endswith("failed")


def test_control_characters_are_dropped() -> None:
    assert user_sentence("\x1b[31mred\x1b[0m \x07bell\u202etxt") == "red bell txt"


def test_long_message_is_truncated() -> None:
    sentence = user_sentence("word " * 1000)
    assert len(sentence) <= MAX_LENGTH
    assert sentence.endswith("word…")


def test_megabytes_of_traceback_are_read_quickly_from_both_ends() -> None:
    assert user_sentence("x/" * 3_000_000 + "\nValueError: the end") == "the end"


def test_json_nested_too_deep_to_parse_raises_no_error() -> None:
    assert user_sentence("[" * 100_000) == FALLBACK


# Fragments that the rules search for, so that generated texts contain the fragments and their edge cases.
PIECES = [
    *(
        "/home/",
        "/home",
        "/",
        "\\",
        "~",
        "C:\\",
        "\\\\nas\\",
        "file://",
        "https://h/p?sig=",
        "'",
        '"',
        " ",
        "\n",
    ),
    *(
        'File "',
        '", line 3',
        "ValueError: ",
        '{"exception_message": "',
        '"}',
        "\\u0000",
        "\u202e",
        "\x1b[31m",
    ),
]
messages = st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=30).map("".join)


@given(messages | st.builds(lambda text: json.dumps({"exception_message": text}), messages))
def test_any_input_gives_a_displayable_sentence(raw: str) -> None:
    sentence = user_sentence(raw)
    assert any(letter.isalnum() for letter in sentence)
    assert len(sentence) <= MAX_LENGTH
    assert len(sentence.splitlines()) == 1
    assert not any(unicodedata.category(letter) in ("Cc", "Cf") for letter in sentence)
    assert "/home/" not in sentence
    assert "://" not in sentence
    sentence.encode()


@given(
    st.recursive(
        st.none() | st.booleans() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_json_gives_a_sentence(value: object) -> None:
    assert user_sentence(json.dumps(value))
