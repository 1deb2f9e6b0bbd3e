"""Malicious files are refused at once, with a message."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from comfyrelay.comfyui.editor import sources
from comfyrelay.comfyui.editor.groups import GroupNode, read_group
from comfyrelay.comfyui.editor.loading import as_graph, load_workflow
from comfyrelay.comfyui.editor.workflow import BYPASSED, MUTED
from comfyrelay.comfyui.graphs.graph import MAX_BYTES
from comfyrelay.errors import ComfyRelayError, GraphError, NotInstalled
from tests.support.editor_files import DEFINITIONS, empty, invert, node, save, subgraph, workflow
from tests.support.full import full_only


def write_workflow(folder: Path, text: str) -> Path:
    file = folder / "workflow.json"
    file.write_text(text)
    return file


def test_oversized_file_is_read_only_up_to_the_limit(tmp_path: Path) -> None:
    file = tmp_path / "workflow.json"
    with file.open("wb") as opened:
        opened.truncate(50 * 2**20)
    tracemalloc.start()
    try:
        with pytest.raises(GraphError, match="larger than 16 MB"):
            load_workflow(file)
        assert tracemalloc.get_traced_memory()[1] < 2 * MAX_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("text", ["[" * 5_000_000, '{"a":' * 3_000_000, '{"nodes": [' + "[" * 100_000 + "]" * 100_000])
def test_extremely_nested_json_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(GraphError, match="nested too deeply"):
        load_workflow(write_workflow(tmp_path, text))


def test_deeply_nested_json_is_read_or_refused(tmp_path: Path) -> None:
    deep: Any = 0
    for _ in range(400):
        deep = [deep]
    value = workflow([empty() | {"widgets_values": deep, "properties": {"deep": deep}}, save(3, 1)], [(1, 1, 0, 3, 0)])
    graph = as_graph(load_workflow(write_workflow(tmp_path, json.dumps(value))), DEFINITIONS)
    assert graph["3"]["class_type"] == "SaveImage"


def test_half_of_a_surrogate_pair_is_kept(tmp_path: Path) -> None:
    value = workflow([empty(), save(3, 1) | {"widgets_values": ["\ud800"]}], [(1, 1, 0, 3, 0)])
    graph = as_graph(load_workflow(write_workflow(tmp_path, json.dumps(value))), DEFINITIONS)
    assert graph["3"]["inputs"]["filename_prefix"] == "\ud800"


def test_cycle_of_nodes_is_refused(tmp_path: Path) -> None:
    value = workflow([invert(1, 1), invert(2, 2), save(3, 3)], [(1, 2, 0, 1, 0), (2, 1, 0, 2, 0), (3, 2, 0, 3, 0)])
    with pytest.raises(GraphError, match=r"form a cycle: 1, 2\."):
        as_graph(load_workflow(write_workflow(tmp_path, json.dumps(value))), DEFINITIONS)


def test_cycle_of_subgraphs_is_refused(tmp_path: Path) -> None:
    inner = [{"id": 5, "type": "b", "inputs": [], "outputs": []}]
    other = [{"id": 6, "type": "a", "inputs": [], "outputs": []}]
    value = workflow([{"id": 1, "type": "a", "inputs": [], "outputs": []}], [])
    value["definitions"] = {"subgraphs": [subgraph("a", inner, [], [], []), subgraph("b", other, [], [], [])]}
    with pytest.raises(ComfyRelayError):
        as_graph(load_workflow(write_workflow(tmp_path, json.dumps(value))), DEFINITIONS)


def test_link_from_a_node_without_outputs_has_no_source() -> None:
    bypassed = workflow([empty() | {"mode": BYPASSED}, save(9, 1)], [(1, 1, -1, 9, 0)])
    assert "images" not in as_graph(bypassed, {**DEFINITIONS, "EmptyImage": {"output": []}})["9"]["inputs"]


def test_large_repeated_group_is_refused_before_expansion() -> None:
    value = workflow([{"id": number, "type": "workflow>g"} for number in range(4000)])
    value["extra"] = {"groupNodes": {"g": {"nodes": [{}] * 15_000}}}
    tracemalloc.start()
    try:
        with pytest.raises(GraphError, match=r"more than 20,000 nodes"):
            as_graph(value, DEFINITIONS)
        # Two uses reach the limit of a workflow; all uses would take 50 GB.
        assert tracemalloc.get_traced_memory()[1] < 100 * 2**20
    finally:
        tracemalloc.stop()


def test_repeated_group_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[object] = []

    def counted(*args: Any) -> GroupNode:
        read.append(args)
        return read_group(*args)

    monkeypatch.setattr(sources, "read_group", counted)
    value = workflow([{"id": number, "type": "workflow>g"} for number in range(100)])
    value["extra"] = {"groupNodes": {"g": {"nodes": [empty()]}}}
    assert len(as_graph(value, DEFINITIONS)) == 100
    assert len(read) == 1


@pytest.mark.parametrize("slot", [-1, -100])
@pytest.mark.parametrize("mode", [0, BYPASSED])
def test_link_from_a_negative_slot_has_no_source(slot: int, mode: int) -> None:
    sub = subgraph("sub", [empty(5), save(6, 7)], [(7, -10, slot, 6, 0), (8, 5, slot, -20, 0)], [], [("o", "*", [8])])
    group = {"nodes": [empty(), save(0, 1)], "links": [[0, slot, 1, 0, "IMAGE"]]}
    links = [(1, 1, slot, 9, 0), (2, 2, slot, 10, 0), (3, 3, slot, 11, 0)]
    origins = [invert(1, 0, mode=mode), node(2, "sub", mode=mode), node(3, "workflow>g", mode=mode)]
    value = workflow([*origins, save(9, 1), save(10, 2), save(11, 3)], links)
    value |= {"definitions": {"subgraphs": [sub]}, "extra": {"groupNodes": {"g": group}}}
    graph = as_graph(value, DEFINITIONS)
    savers = [saver for saver in graph.values() if saver["class_type"] == "SaveImage"]
    assert len(savers) == (3 if mode else 5)
    assert all("images" not in saver["inputs"] for saver in savers)


def prompt_of(text: str) -> str:
    value = workflow([node(1, "CLIPTextEncode", values=[text])])
    return str(as_graph(value, DEFINITIONS)["1"]["inputs"]["text"])


# These texts would take hours if every letter caused another scan.
@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("a" * 1_000_000, "a" * 1_000_000),
        ("/*a" * 300_000, "/*a" * 300_000),
        ("/*a//\n" * 100_000, "/*a\n" * 100_000),
        ("/**/a" * 100_000, "a" * 100_000),
        ("{a" * 100_000, "a" * 100_000),
        ("{a" * 50_000 + "}" * 50_000, "a" * 50_000),
        ("\\{" * 150_000, "{" * 150_000),
    ],
    ids=lambda text: text[:8],
)
def test_prompt_is_scanned_once(text: str, sent: str) -> None:
    assert prompt_of(text) == sent


def test_mutually_exposed_fields_are_followed_up_to_the_depth_limit() -> None:
    def shows(name: str, inside: str) -> dict[str, Any]:
        return subgraph(name, [node(1, inside, [("a", "INT", 1)])], [(1, -10, 0, 1, 0)], [("a", "INT", [1])], [])

    sampler = node(8, "KSampler", [("seed", "INT", 5, "seed")])
    muted = node(7, "0", [("a", "INT", 3)], mode=MUTED)
    top = subgraph("top", [muted, sampler], [(3, -10, 0, 7, 0), (5, -10, 0, 8, 0)], [("b", "INT", [3, 5])], [])
    chain = [shows(str(at), str(at + 1)) for at in range(2000)]
    value = workflow([node(1, "top", [("b", "INT", None)])]) | {"definitions": {"subgraphs": [top, *chain]}}
    with pytest.raises(GraphError, match="more than 50 levels"):
        as_graph(value, DEFINITIONS)


# Each of these files would take hours or more memory than any machine has.


@pytest.mark.parametrize("count", [4_000, *full_only(20_000)])
def test_inputs_of_a_large_subgraph_are_resolved_once(count: int) -> None:
    many, last = range(count), list(range(count - 20, count))
    taker = node(5, "ImageInvert", [(f"n{at}", "IMAGE", at) for at in many])
    sub = subgraph("sub", [taker], [(at, -10, at, 5, 0) for at in many], [(f"n{at}", "IMAGE", last) for at in many], [])
    holder = node(1, "sub", [(f"n{at}", "IMAGE", 1) for at in many])
    value = workflow([holder, empty(2)], [(1, 2, 0, 1, 0)]) | {"definitions": {"subgraphs": [sub]}}
    graph = as_graph(value, DEFINITIONS)
    assert [entry["inputs"].get(f"n{count - 1}") for entry in graph.values()] == [None, ["2", 0]]


def test_total_number_of_inputs_is_limited() -> None:
    sub = subgraph("sub", [node(5, "ImageInvert", [(f"n{at}", "*", None) for at in range(20_000)])], [], [], [])
    value = workflow([node(at, "sub") for at in range(10_000)]) | {"definitions": {"subgraphs": [sub]}}
    with pytest.raises(GraphError, match=r"more than 1,000,000 inputs"):
        as_graph(value, DEFINITIONS)


def test_group_with_many_open_inputs_is_read_once() -> None:
    value = workflow([node(1, "workflow>g"), save(2, None)])
    inside = node(0, "Unknown", [(f"n{at}", "*", None) for at in range(20_000)])
    value["extra"] = {"groupNodes": {"g": {"nodes": [inside]}}}
    with pytest.raises(NotInstalled):
        as_graph(value, DEFINITIONS)


def test_long_title_is_not_repeated_per_subgraph_use() -> None:
    sub = subgraph("sub", [node(5, "Unknown" * 10_000, title="x" * 1_000_000)], [], [], [])
    value = workflow([node(at, "sub") for at in range(5000)]) | {"definitions": {"subgraphs": [sub]}}
    with pytest.raises(NotInstalled) as refused:
        as_graph(value, DEFINITIONS)
    assert len(refused.value.detail) < 2_000_000


def test_oversized_node_id_is_refused() -> None:
    sub = subgraph("sub", [empty(5) | {"id": "5" * 1_000_000}], [], [], [])
    value = workflow([node(at, "sub") for at in range(5000)]) | {"definitions": {"subgraphs": [sub]}}
    with pytest.raises(GraphError, match="longer than 100 characters"):
        as_graph(value, DEFINITIONS)


@pytest.mark.parametrize(
    "definition",
    [
        {"input": {"required": {"a": ["INT"]}}, "input_order": {"required": 5}},
        {"input": {"required": {"a": ["INT"]}}, "input_order": {"required": [["a"]]}},
        {"input": {"required": {"a": ["COMFY_DYNAMICCOMBO_V3", {"options": 5}]}}},
        {"input": {}, "output": 5},
    ],
)
def test_malformed_definition_is_ignored(definition: dict[str, Any]) -> None:
    value = workflow([node(1, "X"), node(2, "X", mode=BYPASSED), save(3, 1)], [(1, 2, 0, 3, 0)])
    assert as_graph(value, {**DEFINITIONS, "X": definition})["1"]["class_type"] == "X"
