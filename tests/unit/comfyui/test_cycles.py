"""Cycles of links in a graph."""

from typing import Any

import pytest

from comfyrelay.comfyui.graphs import cycles
from comfyrelay.comfyui.graphs.cycles import check_cycles, find_cycles
from comfyrelay.comfyui.graphs.validation import MAX_CYCLE_NODES, validate
from comfyrelay.errors import GraphError
from tests.support.operations import Counter


def chain(**sources: str) -> dict[str, Any]:
    """A graph in which each node takes the outputs of the named nodes."""
    return {
        node_id: {"class_type": "ImageInvert", "inputs": {f"image_{source}": [source, 0] for source in needed.split()}}
        for node_id, needed in sources.items()
    }


# `x` and `y` form a cycle, on which `a` depends. `b` can run.
GRAPH = chain(a="s x", b="s", s="", x="y", y="x")


def test_cycle_contains_only_its_own_nodes() -> None:
    assert find_cycles(GRAPH, ["a", "b"]) == [["x", "y"]]


def test_cycle_that_no_output_needs_is_not_found() -> None:
    assert find_cycles(GRAPH, ["b"]) == []


def test_node_may_depend_on_itself() -> None:
    assert find_cycles(chain(a="b", b="b"), ["a"]) == [["b"]]


def test_every_blocked_output_depends_on_a_found_cycle() -> None:
    graph = chain(a="x", b="y", c="p", x="y", y="x", p="p")
    assert find_cycles(graph, ["a", "b", "c"]) == [["x", "y"], ["p"]]


def test_output_that_depends_on_a_cycle_is_refused() -> None:
    with pytest.raises(GraphError, match=r"form a cycle: x, y\.$"):
        check_cycles(GRAPH, "a")
    check_cycles(GRAPH, "b")


def test_graph_is_refused_if_no_output_can_run() -> None:
    check_cycles(GRAPH, None)
    with pytest.raises(GraphError, match="form a cycle: x, y"):
        check_cycles({name: node for name, node in GRAPH.items() if name != "b"}, None)


def test_loop_nodes_without_a_cycle_of_links_may_run() -> None:
    """Loops of node packs link their end to their start. They are expanded while they run."""
    check_cycles(chain(loop_start="", body="loop_start", loop_end="loop_start body", save="loop_end"), "save")


def test_operations_grow_with_the_graph_only() -> None:
    counts = []
    for length in (500, 1000):
        links = {str(number): f"{(number + 1) % length} {number // 2}" for number in range(length)}
        counter = Counter()
        with counter.within(cycles):
            find_cycles(chain(**links), links)
        counts.append(counter.count)
    assert counts[1] <= 2.2 * counts[0]


def test_long_cycle_is_shortened_in_the_answer() -> None:
    length = 500
    graph = chain(**{str(number): str((number + 1) % length) for number in range(length)}, save="0")
    graph["save"]["class_type"] = "SaveImage"
    found = validate(graph, None).node_errors
    assert len(found) == MAX_CYCLE_NODES
    [error] = found["0"]["errors"]
    assert error["details"].endswith("19 (ImageInvert) -> … -> 0 (ImageInvert)")
