"""Convert group nodes, the predecessors of subgraphs, into subgraphs.

The file does not say which field of the group belongs to which inner node. The order of the fields does: for each inner
node first its fields, then its open inputs; after all nodes, the fields that were converted to inputs. Newer editors
save every field as an input.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from comfyrelay.comfyui.editor.editor_only_nodes import PRIMITIVE
from comfyrelay.comfyui.editor.widgets import ACTIONS, SEEDS, StoredValue, input_slots, read_specs
from comfyrelay.comfyui.editor.workflow import (
    INPUT_NODE,
    OUTPUT_NODE,
    GraphLink,
    Node,
    Sheet,
    Slot,
    SubgraphPort,
    as_dict,
    as_list,
    read_node,
)

PREFIXES = ("workflow>", "workflow/")


@dataclass(frozen=True, slots=True)
class GroupNode:
    """The content of a group node, and its visible fields in order: inner node, the field's name there, and whether an
    action after a run may follow."""

    sheet: Sheet
    fields: tuple[tuple[str, str, bool], ...]

    def values_inside(self, stored: list[Any] | dict[str, Any]) -> dict[tuple[str, str], StoredValue]:
        """Return the values of the group's fields by inner node and field name."""
        values = stored if isinstance(stored, list) else []
        found: dict[tuple[str, str], StoredValue] = {}
        at = 0
        for node_id, name, has_after_run in self.fields:
            if at < len(values) and values[at] is not None:
                found[node_id, name] = StoredValue(values[at], values, at)
            # A group shows the action of each seed, and of other fields if their definition has one.
            is_action_next = has_after_run and at + 1 < len(values) and values[at + 1] in ACTIONS
            at += 2 if name in SEEDS or is_action_next else 1
        return found


def read_group(group: Mapping[str, Any], node_definitions: Mapping[str, Any]) -> GroupNode:
    nodes = [read_node(as_dict(node), node_id=str(at)) for at, node in enumerate(as_list(group.get("nodes")))]
    inner, targets = _links(group)
    naming = _Naming(group)
    ports: list[SubgraphPort] = []
    fields: list[tuple[str, str, bool]] = []
    links = dict(inner)
    slots_of: dict[str, list[Slot]] = {}
    converted: list[tuple[Node, str]] = []
    opened: dict[tuple[str, str], str] = {}

    def open_to_outside(node: Node, name: str) -> None:
        link = f"{node.id}:{name}"
        links[link] = GraphLink(INPUT_NODE, len(ports), node.id)
        ports.append(SubgraphPort(naming.name(node, name), "*", (link,)))
        opened[node.id, name] = link

    for node in nodes:
        slots_of[node.id] = _slots(node, node_definitions, targets)
        linked = {slot.name for slot in slots_of[node.id] if slot.link is not None}
        as_inputs = {slot.name for slot in node.inputs if slot.widget == slot.name}
        names, acting = _names(node, node_definitions), _fields_with_action(node, node_definitions)
        for name, is_field in names:
            if is_field and name not in as_inputs:
                naming.name(node, name)
                fields.append((node.id, name, name in acting))
        for name, is_field in names:
            if not is_field and name not in linked:
                if naming.is_hidden(node, name):
                    naming.name(node, name)
                else:
                    open_to_outside(node, name)
        free = [name for name, is_field in names if is_field and name in as_inputs and name not in linked]
        converted += [(node, name) for name in sorted(free, key=_editor_order(node))]
    for node, name in converted:
        open_to_outside(node, name)
        fields.append((node.id, name, name in _fields_with_action(node, node_definitions)))
    return GroupNode(
        sheet=Sheet(
            nodes={
                node.id: replace(
                    node, inputs=tuple(_with_outside_link(slot, opened, node) for slot in slots_of[node.id])
                )
                for node in nodes
            },
            links=links,
            inputs=tuple(ports),
            outputs=tuple(_outputs(nodes, group, links, node_definitions)),
        ),
        fields=tuple(fields),
    )


def _with_outside_link(slot: Slot, links: Mapping[tuple[str, str], str], node: Node) -> Slot:
    return replace(slot, link=links.get((node.id, slot.name), slot.link))


def _editor_order(node: Node) -> Callable[[str], str]:
    """Return the sort key of fields that were converted to inputs: like the editor, compare positions as text."""
    positions = {slot.name: str(at) for at, slot in enumerate(node.inputs)}
    return lambda name: positions[name]


class _Naming:
    """Names of a group's inputs and fields: the inner names, prefixed with the node's title if already used."""

    def __init__(self, group: Mapping[str, Any]) -> None:
        self._config = as_dict(group.get("config"))
        self._seen: dict[str, int] = {}

    def is_hidden(self, node: Node, name: str) -> bool:
        return self._custom(node, name).get("visible") is False

    def _custom(self, node: Node, name: str) -> Mapping[str, Any]:
        return as_dict(as_dict(as_dict(self._config.get(node.id)).get("input")).get(name))

    def name(self, node: Node, name: str) -> str:
        custom = self._custom(node, name).get("name")
        label = next((slot.label for slot in node.inputs if slot.name == name), None)
        key = result = custom if isinstance(custom, str) and custom else label or name
        if (node.type == PRIMITIVE and node.title) or result in self._seen:
            prefix = f"{node.title or node.type} "
            key = result = f"{prefix}{name}"
            if result in self._seen:
                result = f"{prefix}{self._seen[result]} {name}"
        self._seen[key] = self._seen.get(key, 1) + 1
        return result


def _links(group: Mapping[str, Any]) -> tuple[dict[str, GraphLink], dict[tuple[str, int], str]]:
    links: dict[str, GraphLink] = {}
    targets: dict[tuple[str, int], str] = {}
    for at, stored in enumerate(as_list(group.get("links"))):
        match stored:
            case [int() as origin, int() as slot, int() as target, int() as at_target, *_] if slot >= 0:
                links[str(at)] = GraphLink(str(origin), slot, str(target))
                targets[str(target), at_target] = str(at)
    return links, targets


def _slots(node: Node, node_definitions: Mapping[str, Any], targets: Mapping[tuple[str, int], str]) -> list[Slot]:
    definition = node_definitions.get(node.type)
    known = input_slots(read_specs(definition)) if isinstance(definition, dict) else []
    named = {slot.name for slot in node.inputs}
    slots = [Slot(slot.name, slot.type, targets.get((node.id, at)), slot.widget) for at, slot in enumerate(node.inputs)]
    return slots + [slot for slot in known if slot.name not in named]


def _names(node: Node, node_definitions: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """Return the name of each input of an inner node, and whether the input is a field."""
    if node.type == PRIMITIVE:
        return [("value", True)]
    definition = node_definitions.get(node.type)
    if not isinstance(definition, dict):
        return [(slot.name, False) for slot in node.inputs]
    return [(spec.name, spec.is_field) for spec in read_specs(definition)]


def _fields_with_action(node: Node, node_definitions: Mapping[str, Any]) -> set[str]:
    """Return the fields of an inner node that have an action after a run. A primitive has one for most types."""
    if node.type == PRIMITIVE:
        return {"value"}
    return {spec.name for spec in read_specs(as_dict(node_definitions.get(node.type))) if spec.has_after_run}


def _outputs(
    nodes: list[Node], group: Mapping[str, Any], links: dict[str, GraphLink], node_definitions: Mapping[str, Any]
) -> list[SubgraphPort]:
    """Return the outputs that no inner node uses, or that an outer node used when the group was created."""
    taken = {(link.origin, link.origin_slot) for link in links.values()}
    outside = {(str(output[0]), output[1]) for output in as_list(group.get("external")) if _is_output(output)}
    ports: list[SubgraphPort] = []
    for node in nodes:
        definition = node_definitions.get(node.type)
        types = definition.get("output") if isinstance(definition, dict) else node.output_types
        for slot, kind in enumerate(types if isinstance(types, list | tuple) else ()):
            if (node.id, slot) not in taken or (node.id, slot) in outside:
                link = f"{node.id}>{slot}"
                links[link] = GraphLink(node.id, slot, OUTPUT_NODE)
                ports.append(SubgraphPort(str(kind), str(kind), (link,)))
    return ports


def _is_output(value: object) -> bool:
    """Whether a value consists of a node and an output number."""
    return isinstance(value, list) and len(value) > 1 and all(isinstance(part, int | str) for part in value[:2])
