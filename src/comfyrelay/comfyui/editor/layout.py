"""Lay out a graph in API format as an editor file, in columns from left to right."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from comfyrelay.comfyui.editor.widgets import Spec, input_slots, read_specs, stored_values
from comfyrelay.comfyui.editor.workflow import as_dict, as_list, type_name
from comfyrelay.comfyui.graphs.graph import Graph, is_link

VERSION = 0.4
COLUMN_WIDTH, NODE_WIDTH = 400, 320
ROW_HEIGHT, TEXT_HEIGHT, TITLE_HEIGHT, GAP = 26, 120, 40, 40


@dataclass(slots=True)
class _Placed:
    """A node of the file. Links are added after all nodes have been created."""

    id: int
    specs: list[Spec]
    content: dict[str, Any]
    outputs: list[dict[str, Any]] = field(default_factory=list)


def lay_out(graph: Graph, node_definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return an editor file with the nodes and links of a graph. Nodes without a definition keep their links."""
    ids = _numbers(graph)
    placed = {node_id: _node(ids[node_id], node, node_definitions) for node_id, node in graph.items()}
    links: list[list[Any]] = []
    for node_id, node in graph.items():
        _connect(placed[node_id], node["inputs"], placed, links)
    _arrange(graph, placed)
    return {
        "last_node_id": max(ids.values(), default=0),
        "last_link_id": len(links),
        "nodes": [node.content for node in placed.values()],
        "links": links,
        "groups": [],
        "config": {},
        "extra": {},
        "version": VERSION,
    }


def _numbers(graph: Graph) -> dict[str, int]:
    """Return a number for each node: its id if that is a number, otherwise a new number."""
    numbers = {node_id: int(node_id) for node_id in graph if node_id.isdecimal() and len(node_id) < 10}
    taken = set(numbers.values())
    if len(taken) < len(numbers):
        # Two ids are the same number, such as `1` and `01`.
        numbers, taken = {}, set()
    following = max(taken, default=0)
    for node_id in graph:
        if node_id not in numbers:
            following += 1
            numbers[node_id] = following
    return numbers


def _node(number: int, node: Mapping[str, Any], node_definitions: Mapping[str, Any]) -> _Placed:
    class_type, inputs = node["class_type"], node["inputs"]
    definition = as_dict(node_definitions.get(class_type))
    specs = read_specs(definition)
    values = stored_values(specs, inputs) if definition else [v for v in inputs.values() if not is_link(v)]
    content = {
        "id": number,
        "type": class_type,
        "flags": {},
        "order": 0,
        "mode": 0,
        "inputs": [],
        "outputs": [],
        "properties": {"Node name for S&R": class_type},
        "widgets_values": values,
    }
    title = as_dict(node.get("_meta")).get("title")
    if isinstance(title, str) and title != class_type:
        content["title"] = title
    placed = _Placed(number, specs, content)
    names = as_list(definition.get("output_name"))
    for slot, kind in enumerate(as_list(definition.get("output"))):
        name = names[slot] if slot < len(names) else type_name(kind)
        placed.outputs.append({"name": str(name), "type": type_name(kind), "links": []})
    content["outputs"] = placed.outputs
    return placed


def _connect(target: _Placed, inputs: Mapping[str, Any], placed: Mapping[str, _Placed], links: list[list[Any]]) -> None:
    """Write the inputs of a node that have no field or have a link."""
    slots = {slot.name: slot for slot in input_slots(target.specs)}
    linked = {name: value for name, value in inputs.items() if is_link(value) and value[0] in placed}
    for name in [*slots, *(name for name in linked if name not in slots)]:
        slot = slots.get(name)
        if slot is not None and slot.widget is not None and name not in linked:
            continue
        entry: dict[str, Any] = {"name": name, "type": "*" if slot is None else slot.type, "link": None}
        if slot is not None and slot.widget is not None:
            entry["widget"] = {"name": name}
        if name in linked:
            origin, at = placed[linked[name][0]], linked[name][1]
            while len(origin.outputs) <= at:
                origin.outputs.append({"name": "*", "type": "*", "links": []})
            entry["link"] = len(links) + 1
            origin.outputs[at]["links"].append(entry["link"])
            position = len(target.content["inputs"])
            links.append([entry["link"], origin.id, at, target.id, position, origin.outputs[at]["type"]])
        target.content["inputs"].append(entry)


def _arrange(graph: Graph, placed: Mapping[str, _Placed]) -> None:
    """Put each node one column to the right of its rightmost predecessor."""
    bottoms: dict[int, int] = {}
    for order, (node_id, column) in enumerate(sorted(_columns(graph).items(), key=lambda item: item[1])):
        node = placed[node_id]
        texts = sum(spec.is_field and bool(spec.options.get("multiline")) for spec in node.specs)
        rows = max(len(node.content["inputs"]), len(node.outputs)) + len(node.content["widgets_values"])
        height = TITLE_HEIGHT + rows * ROW_HEIGHT + texts * TEXT_HEIGHT
        top = bottoms.get(column, 0)
        node.content |= {"pos": [column * COLUMN_WIDTH, top], "size": [NODE_WIDTH, height], "order": order}
        bottoms[column] = top + height + GAP


def _columns(graph: Graph) -> dict[str, int]:
    """Return the column of each node. Links from nodes in a cycle are ignored."""
    needs = {
        node_id: {value[0] for value in node["inputs"].values() if is_link(value) and value[0] in graph}
        for node_id, node in graph.items()
    }
    needed_by: dict[str, list[str]] = {}
    for node_id, origins in needs.items():
        for origin in origins:
            needed_by.setdefault(origin, []).append(node_id)
    columns = dict.fromkeys(graph, 0)
    missing = {node_id: len(origins) for node_id, origins in needs.items()}
    ready = [node_id for node_id, count in missing.items() if count == 0]
    while ready:
        origin = ready.pop()
        for node_id in needed_by.get(origin, ()):
            columns[node_id] = max(columns[node_id], columns[origin] + 1)
            missing[node_id] -= 1
            if missing[node_id] == 0:
                ready.append(node_id)
    return columns
