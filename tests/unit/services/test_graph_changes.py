"""The differences of two versions of a graph are described as sentences."""

from typing import Any

from comfyrelay.domain.properties import MAX_NAMED
from comfyrelay.services.catalogue.own_versions import MAX_VALUE_LENGTH, describe_graph_changes


def node(class_type: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs}


def test_equal_graphs_have_no_changes() -> None:
    graph = {"1": node("KSampler", steps=20, model=["2", 0]), "2": node("Loader")}
    assert describe_graph_changes(graph, graph) == []


def test_added_removed_and_changed_nodes_are_named() -> None:
    before = {"1": node("KSampler", steps=20, cfg=1, model=["2", 0]), "2": node("Loader"), "3": node("Crop")}
    after = {"1": node("KSampler", steps=30, cfg=True, model=["4", 0]), "2": node("Loader"), "4": node("LoraLoader")}
    assert describe_graph_changes(before, after) == [
        "Added nodes: LoraLoader (4).",
        "Removed nodes: Crop (3).",
        "Changed values: KSampler (1) steps (20, now 30), KSampler (1) cfg (1, now true).",
        "Changed links: KSampler (1) model.",
    ]


def test_node_of_another_class_is_removed_and_added() -> None:
    changes = describe_graph_changes({"1": node("SaveImage")}, {"1": node("SaveVideo", fps=8)})
    assert changes == ["Added nodes: SaveVideo (1).", "Removed nodes: SaveImage (1)."]


def test_description_is_bounded() -> None:
    before = {"1": node("Prompt", text="a" * 5000), **{f"{id_}": node("Old") for id_ in range(2, 500)}}
    after = {"1": node("Prompt", text="line\nbreak " * 500)}
    removed, changed = describe_graph_changes(before, after)
    assert removed.endswith(f", {498 - MAX_NAMED} more.")
    assert len(changed) < 4 * MAX_VALUE_LENGTH
    assert "\n" not in changed
