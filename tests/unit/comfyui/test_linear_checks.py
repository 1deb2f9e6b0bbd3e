"""The cost of checking users' texts is proportional to their length, for every repeated character."""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from comfyrelay import error_text, json_size, text
from comfyrelay.comfyui.editor import convert, widgets
from comfyrelay.comfyui.graphs import foreign_files, graph, hash, nodes, paths, placeholders, policy
from comfyrelay.comfyui.graphs.policy import GraphPolicy
from comfyrelay.domain import properties
from comfyrelay.errors import ComfyRelayError
from comfyrelay.services.catalogue import graphs
from comfyrelay.services.forms import describe, inputs, labels, output, recognise, sampling, traced_graph
from comfyrelay.services.jobs.submission import own_inputs
from tests.support.editor_files import workflow
from tests.support.full import full_only
from tests.support.operations import Counter

MODULES = (
    *(error_text, json_size, text, widgets, convert, foreign_files, graph, hash, nodes, paths, placeholders, policy),
    *(properties, graphs, describe, inputs, labels, output, recognise, sampling, traced_graph, own_inputs),
)
SHORT, LONG = 90, 180
SPECIAL = [
    *("\n", "\r", "\r\n", "\u2028", " ", "\t", "a", "A", "0", "é", "_", "-", "/", "\\", ".", "..", "~", ":", "*"),
    *('"', "'", "`", "[", "]", "(", ")", "{", "}", "{{", "}}", "|", ",", ";", "=", "#", "$", "%", "&", "?", "!"),
    *("@", "<", ">", "^", "\x1b[", "\x1b]", "\x1b"),
]
# Beginnings of paths, links, placeholders and names that the patterns search for.
WORDS = [
    *("a/", "/a", "../", "/..", "./", "//", "C:\\", "file:/", "https://", "a.png ", "{{A", "{{A}}", "{{A}}{{B", "{a|"),
    *(
        "/*",
        "*/",
        '"a\\',
        '\\"',
        "x-amz-",
        'File "',
        "Error:",
        "error_message='",
        "comfyrelay/",
        "a\n",
        " /a b",
        "output/",
    ),
]
NODE = "CLIPTextEncode"
DEFINITIONS = {
    NODE: {"input": {"required": {"text": ["STRING", {"multiline": True, "dynamicPrompts": True}]}}, "output": []}
}


def graph_of(value: str) -> dict[str, Any]:
    return {
        "1": {"class_type": NODE, "inputs": {"text": value, "path": value[:50], "clip": ["2", 0]}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "x"}},
    }


def check_policy(value: str) -> None:
    shared = GraphPolicy(is_shared=True)
    shared.check({"1": {"class_type": NODE, "inputs": {"text": value}}}, own={"{{A}}", "{{B}}"})


def fill(value: str) -> None:
    filled = graph.replace_placeholders(graph_of(value), {"{{A}}": "a", "{{B}}": 1, value[:20]: value[:3]})
    hash.workflow_hash(filled)


def submit(value: str) -> None:
    source = graph_of("{{A}} and {{B}}")
    graphs.WorkflowHasher(source, ["{{A}}", "{{B}}"]).hash({"{{A}}": value, "{{B}}": value})
    own_inputs.OwnInputs(GraphPolicy(), source, texts=["{{A}}"], files=["{{B}}"]).check({"{{A}}": value})


def convert_editor_file(value: str) -> None:
    node = {"id": 1, "type": NODE, "inputs": [], "outputs": [], "widgets_values": [value]}
    convert.convert_workflow(workflow([node], []), DEFINITIONS)


def clean(value: str) -> None:
    text.excerpt(value, length=60)
    text.printable(value)
    text.one_line(value)
    text.natural_key(value)


CHECKS: dict[str, Callable[[str], object]] = {
    "policy": check_policy,
    "form": lambda value: describe.describe_graph(graph_of(value)),
    "placeholders": fill,
    "submission": submit,
    "editor": convert_editor_file,
    "error": error_text.user_sentence,
    "redaction": error_text._clean,
    "names": clean,
    # This body ends within a text and has more values before the text than allowed.
    "values": lambda value: json_size.has_more_values(b"," * 20 + json.dumps(value).encode()[:-1], 10_000),
    "open body": lambda value: json_size.has_more_values(b'[[",' + value.encode(), 3),
}


def operations(check: Callable[[str], object], value: str) -> int:
    counter = Counter()
    placeholders._small.cache_clear()
    # A check may also refuse the text.
    with counter.within(*MODULES), suppress(ComfyRelayError):
        check(value)
    return counter.count


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("part", [*SPECIAL, *WORDS], ids=ascii)
@pytest.mark.parametrize("around", [("", ""), *full_only(("z", "!"), ("/", "\n"), ('"', "a"))])
def test_operations_are_proportional_to_the_text(name: str, part: str, around: tuple[str, str]) -> None:
    """Twice the text takes at most a little more than twice the operations."""
    # Fill the caches that do not depend on the text.
    operations(CHECKS[name], "")
    counts = [
        operations(CHECKS[name], f"{around[0]}{part * (length // len(part))}{around[1]}") for length in (0, SHORT, LONG)
    ]
    assert counts[2] - counts[0] <= 2.2 * (counts[1] - counts[0]) + 200, counts


def test_equal_lines_are_checked_once() -> None:
    equal = operations(check_policy, "\n".join(["a cat"] * 1000))
    different = operations(check_policy, "\n".join(f"a cat {number}" for number in range(1000)))
    assert equal < different / 4
