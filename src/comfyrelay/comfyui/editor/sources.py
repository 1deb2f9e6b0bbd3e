"""Resolve the source of an input through reroutes, bypassed nodes and subgraph boundaries."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from comfyrelay.comfyui.editor import editor_only_nodes
from comfyrelay.comfyui.editor.groups import PREFIXES, GroupNode, read_group
from comfyrelay.comfyui.editor.older_values import current_values
from comfyrelay.comfyui.editor.widgets import (
    Spec,
    StoredValue,
    as_shown_by_subgraph,
    field_values,
    first_value,
    input_slots,
    read_specs,
    with_pack_fields,
)
from comfyrelay.comfyui.editor.workflow import BYPASSED, INPUT_NODE, MUTED, EditorWorkflow, Node, Sheet, Slot, as_list
from comfyrelay.errors import GraphError

DEEPEST_SUBGRAPH = 50
# Number of inputs of a bypassed node that are searched for a matching one.
_MAX_FITTING = 200


@dataclass(frozen=True, slots=True, eq=False)
class Scope:
    """The workflow itself, or one use of a subgraph; `holder` is the node in the outer scope that represents it."""

    sheet: Sheet
    path: tuple[str, ...] = ()
    holder: Node | None = None
    outer: "Scope | None" = None
    # Values of inner fields that are set outside, by node and field. Only group nodes have such values.
    set_outside: Mapping[tuple[str, str], StoredValue] | None = None

    def id_of(self, node: Node) -> str:
        return ":".join((*self.path, node.id))


@dataclass(frozen=True, slots=True)
class NodeOutput:
    """An output of a node that runs."""

    node_id: str
    slot: int


@dataclass(frozen=True, slots=True)
class _Place:
    """An input whose link must be followed further. `value` is the fallback if the link has no source."""

    scope: Scope
    node: Node
    slot: Slot
    value: StoredValue | None = None


Source = NodeOutput | StoredValue | None
# Subgraph, node, input, required type, and whether the input is a promoted field.
_Step = tuple[tuple[str, ...], str, str, str, bool]


class Sources:
    """Follow the links of one workflow, given a server's node definitions."""

    def __init__(self, workflow: EditorWorkflow, node_definitions: Mapping[str, Any]) -> None:
        self._workflow = workflow
        self._node_definitions = node_definitions
        self._specs: dict[str, list[Spec]] = {}
        self._known: dict[str, list[Slot]] = {}
        self._groups: dict[str, GroupNode] = {}
        self._scopes: dict[tuple[str, ...], Scope | None] = {}
        self._fields: dict[Node, dict[str, StoredValue]] = {}
        self._inputs: dict[Node, list[Slot]] = {}
        self._slots: dict[Node, tuple[dict[str, Slot], dict[str, Slot]]] = {}
        self._promoted: dict[Node, dict[str, StoredValue]] = {}
        self._shown: dict[Sheet, dict[str, StoredValue]] = {}
        self._depth = 0
        self._ends: dict[_Step, Source] = {}
        self._output_types: set[str] | None = None
        self._setters: dict[tuple[str, ...], dict[str, Node]] = {}

    def definition(self, node: Node) -> Mapping[str, Any] | None:
        found = self._node_definitions.get(node.type)
        return found if isinstance(found, dict) else None

    def title(self, node: Node) -> str:
        return node.title or str((self.definition(node) or {}).get("display_name") or node.type)

    def specs(self, node: Node) -> list[Spec]:
        """Return the input specs of a node. Cached, because a workflow may have hundreds of nodes of one class."""
        if node.type not in self._specs:
            self._specs[node.type] = read_specs(self.definition(node) or {})
        return self._specs[node.type]

    def _known_slots(self, node: Node) -> list[Slot]:
        if node.type not in self._known:
            sheet = self._workflow.subgraphs.get(node.type)
            known = [] if sheet is None else [Slot(port.name, port.type) for port in sheet.inputs]
            self._known[node.type] = known if self.definition(node) is None else input_slots(self.specs(node))
        return self._known[node.type]

    def inside(self, scope: Scope, node: Node) -> Scope | None:
        """Return the subgraph use that a node represents, if any."""
        path = (*scope.path, node.id)
        if path not in self._scopes:
            self._scopes[path] = self._open(scope, node, path)
        return self._scopes[path]

    def fields(self, scope: Scope, node: Node) -> Mapping[str, StoredValue]:
        """Return the values of a node's fields."""
        if node not in self._fields:
            self._fields[node] = self._own_fields(node) if self.definition(node) is not None else {}
        if not (set_outside := scope.set_outside):
            return self._fields[node]
        return {name: set_outside.get((node.id, name), value) for name, value in self._fields[node].items()}

    def _own_fields(self, node: Node) -> dict[str, StoredValue]:
        specs = self.specs(node)
        values = current_values(node.type, node.values, {spec.name for spec in specs})
        return field_values(with_pack_fields(specs, values, node.inputs, is_output=self._is_output), values)

    def _is_output(self, kind: str) -> bool:
        """Whether any node outputs this type. If so, an input of this type is not a field."""
        if self._output_types is None:
            definitions = (found for found in self._node_definitions.values() if isinstance(found, dict))
            types = (kind for found in definitions for kind in as_list(found.get("output")))
            self._output_types = {"*", *(kind for kind in types if isinstance(kind, str))}
        return kind in self._output_types

    def inputs(self, node: Node) -> list[Slot]:
        """Return the inputs of a node: those of its definition with the file's links, then those only in the file."""
        if node not in self._inputs:
            known = self._known_slots(node)
            stored = {slot.name: slot.link for slot in node.inputs}
            names = {slot.name for slot in known}
            self._inputs[node] = [
                *(replace(slot, link=stored[slot.name]) if slot.name in stored else slot for slot in known),
                *(slot for slot in node.inputs if slot.name not in names),
            ]
        return self._inputs[node]

    def _slots_by_name_and_link(self, node: Node) -> tuple[dict[str, Slot], dict[str, Slot]]:
        """Return the inputs of a node by name and by link. Of duplicates, the first is used."""
        if node not in self._slots:
            slots = self.inputs(node)[::-1]
            by_link = {slot.link: slot for slot in slots if slot.link is not None}
            self._slots[node] = {slot.name: slot for slot in slots}, by_link
        return self._slots[node]

    def source(self, scope: Scope, node: Node, slot: Slot) -> Source:
        """Return the source of an input's value, or `None` if the value comes only from the node's own field.

        The result is cached for each step, because many links may lead through one long chain.
        """
        if slot.link is None:
            return None
        place: Source | _Place = _Place(scope, node, slot)
        wanted, is_promoted, way = slot.type, False, dict[_Step, StoredValue | None]()
        while isinstance(place, _Place):
            if place.node.type not in editor_only_nodes.VIRTUAL:
                wanted, is_promoted = place.slot.type, place.value is not None
            step = (place.scope.path, place.node.id, place.slot.name, wanted, is_promoted)
            if step in self._ends:
                place = self._ends[step]
                break
            link = place.scope.sheet.links.get(place.slot.link) if place.slot.link is not None else None
            is_circle = step in way
            way[step] = place.value or way.get(step)
            if link is None or is_circle:
                place = None
            elif link.origin == INPUT_NODE:
                place = self._outside(place.scope, link.origin_slot)
            else:
                origin = place.scope.sheet.nodes.get(link.origin)
                # The editor sets promoted fields only from primitives that are linked without a reroute.
                is_rerouted = is_promoted and place.node.type in editor_only_nodes.REROUTES
                if origin is None or (is_rerouted and origin.type == editor_only_nodes.PRIMITIVE):
                    place = None
                else:
                    place = self._source_of_output(place.scope, origin, link.origin_slot, wanted)
        end: Source = place
        for step, value in reversed(way.items()):
            # If the link has no source, use the last field on the way.
            end = end or value
            self._ends[step] = end
        return end

    def _open(self, scope: Scope, node: Node, path: tuple[str, ...]) -> Scope | None:
        if self.definition(node) is not None:
            return None
        if (sheet := self._workflow.subgraphs.get(node.type)) is not None:
            return Scope(sheet, path, node, scope)
        name = next((node.type.removeprefix(prefix) for prefix in PREFIXES if node.type.startswith(prefix)), None)
        if name is None or name not in self._workflow.groups:
            return None
        if name not in self._groups:
            self._groups[name] = read_group(self._workflow.groups[name], self._node_definitions)
        group = self._groups[name]
        return Scope(group.sheet, path, node, scope, group.values_inside(node.values))

    def _outside(self, scope: Scope, at: int) -> _Place | None:
        """Return the outer input that corresponds to an input of a subgraph."""
        if scope.holder is None or scope.outer is None or at >= len(scope.sheet.inputs):
            return None
        name = scope.sheet.inputs[at].name
        slot = self._slots_by_name_and_link(scope.holder)[0].get(name) or _slot_at(scope, at) or Slot(name)
        # The fields of group nodes have their values in `set_outside`.
        promoted = self.promoted_fields(scope.holder, scope.sheet) if scope.set_outside is None else {}
        return _Place(scope.outer, scope.holder, slot, promoted.get(name))

    def _source_of_output(self, scope: Scope, node: Node, at: int, wanted: str) -> "Source | _Place":
        """Return the source of an output's value, or the next input to follow."""
        for _ in range(DEEPEST_SUBGRAPH + 1):
            if node.mode == MUTED and node.type != editor_only_nodes.PRIMITIVE:
                return None
            if node.mode == BYPASSED:
                passed = _find_passed_input(self.inputs(node), self._output_type(node, at), at, wanted)
                return None if passed is None else _Place(scope, node, passed)
            if node.type in editor_only_nodes.VIRTUAL:
                return self._source_of_virtual_node(scope, node)
            inside = self.inside(scope, node)
            if inside is None:
                return NodeOutput(scope.id_of(node), at)
            link = inside.sheet.link_to_output(at)
            if link is not None and link.origin == INPUT_NODE:
                return self._outside(inside, link.origin_slot)
            if link is None or link.origin not in inside.sheet.nodes:
                break
            scope, node, at = inside, inside.sheet.nodes[link.origin], link.origin_slot
        return None

    def _source_of_virtual_node(self, scope: Scope, node: Node) -> "Source | _Place":
        if node.type == editor_only_nodes.PRIMITIVE:
            value = (scope.set_outside or {}).get(
                (node.id, "value"), StoredValue(first_value(node.values), node.values, 0)
            )
            return None if value.value is None else value
        if node.type in editor_only_nodes.GETTERS:
            return self._setter(scope, first_value(node.values))
        return _Place(scope, node, node.inputs[0]) if node.inputs else None

    def _setter(self, scope: Scope, name: Any) -> _Place | None:
        """Return the input of the setter node with this name in this scope or the nearest outer one."""
        inner: Scope | None = scope
        while inner is not None:
            if inner.path not in self._setters:
                self._setters[inner.path] = {
                    str(first_value(node.values)): node
                    # Of duplicates, the first is used.
                    for node in reversed(list(inner.sheet.nodes.values()))
                    if node.type in editor_only_nodes.SETTERS and node.inputs and not node.is_off
                }
            if (node := self._setters[inner.path].get(str(name))) is not None:
                return _Place(inner, node, node.inputs[0])
            inner = inner.outer
        return None

    def _output_type(self, node: Node, at: int) -> str:
        definition = self.definition(node)
        types = node.output_types if definition is None else as_list(definition.get("output"))
        found = types[at] if at < len(types) else "*"
        return found if isinstance(found, str) else "COMBO"

    def promoted_fields(self, holder: Node, sheet: Sheet) -> dict[str, StoredValue]:
        """Return the inner fields that a subgraph's node shows, by subgraph input.

        The values are stored by position; newer files also contain the input name of each value.
        """
        if holder not in self._promoted:
            result = dict(self._shown_fields(sheet))
            stored = holder.values if isinstance(holder.values, list) else []
            values = [StoredValue(value, stored, at) for at, value in enumerate(stored)]
            result |= dict(zip(result, values, strict=False))
            for entry, value in zip(as_list(holder.properties.get("proxyWidgets")), values, strict=False):
                match entry:
                    case [-1 | "-1", str() as name, *_] if value.value is not None and name in result:
                        result[name] = value
            self._promoted[holder] = result
        return self._promoted[holder]

    def _shown_fields(self, sheet: Sheet) -> dict[str, StoredValue]:
        """Return the fields that a subgraph shows, with their inner values. Computed once per subgraph."""
        if sheet not in self._shown:
            # Set first: a subgraph that contains itself would recurse forever.
            self._shown[sheet] = {}
            self._depth += 1
            if self._depth > DEEPEST_SUBGRAPH:
                raise GraphError(f"The workflow is too large: more than {DEEPEST_SUBGRAPH} levels of nested subgraphs.")
            fields = {port.name: self._first_field(sheet, port.links) for port in sheet.inputs}
            self._depth -= 1
            self._shown[sheet] = {name: field for name, field in fields.items() if field is not None}
        return self._shown[sheet]

    def _first_field(self, sheet: Sheet, links: tuple[str, ...]) -> StoredValue | None:
        for link_id in links:
            node = sheet.nodes.get(sheet.links[link_id].target) if link_id in sheet.links else None
            slot = None if node is None else self._slots_by_name_and_link(node)[1].get(link_id)
            if node is None or slot is None:
                continue
            if self.definition(node) is not None:
                fields: Mapping[str, StoredValue] = self.fields(Scope(sheet), node)
                name = slot.widget
            else:
                inside = self._workflow.subgraphs.get(node.type)
                fields = {} if inside is None else self.promoted_fields(node, inside)
                name = slot.name
            if name is not None and name in fields:
                return as_shown_by_subgraph(fields[name])
        return None


def _slot_at(scope: Scope, at: int) -> Slot | None:
    """Return the input at a position of a group node, unless it is another input of the group.

    Editor versions have named the inputs of groups differently, but never changed their order.
    """
    if scope.set_outside is None or scope.holder is None or at >= len(scope.holder.inputs):
        return None
    slot = scope.holder.inputs[at]
    return None if any(port.name == slot.name for port in scope.sheet.inputs) else slot


def _find_passed_input(slots: list[Slot], given: str, at: int, wanted: str) -> Slot | None:
    """Return the input whose value a bypassed node passes on."""
    same_position = slots[at] if at < len(slots) else None
    if wanted == "*":
        return same_position or (slots[0] if slots else None)
    if same_position is not None and _fits(same_position.type, given) and _fits(same_position.type, wanted):
        return same_position
    searched = slots[:_MAX_FITTING]
    fitting = (slot for slot in searched if _fits(slot.type, given) and _fits(slot.type, wanted))
    return next((slot for slot in searched if slot.type == wanted), None) or next(fitting, None)


def _fits(one: str, other: str) -> bool:
    return "*" in (one, other) or not set(one.lower().split(",")).isdisjoint(other.lower().split(","))
