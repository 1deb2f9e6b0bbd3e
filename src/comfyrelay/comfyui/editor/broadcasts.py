"""Add the links of the node pack Use Everywhere, whose nodes send a value to all matching inputs of their graph.

The rules are those of the pack's version 7: a value goes to unconnected inputs of its type. Nodes can be restricted by
title, input name, group and colour. If several broadcasts match an input, the highest priority wins; on a tie, none
does.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from comfyrelay.comfyui.editor.editor_only_nodes import BROADCASTS, PROMPTS_BROADCAST, SEED_BROADCAST
from comfyrelay.comfyui.editor.name_patterns import NamePattern, PatternBudget
from comfyrelay.comfyui.editor.sources import Sources
from comfyrelay.comfyui.editor.workflow import (
    BYPASSED,
    INPUT_NODE,
    OUTPUT_NODE,
    EditorWorkflow,
    GraphLink,
    Node,
    Sheet,
    Slot,
    as_dict,
)
from comfyrelay.errors import GraphError

# Far above a real workflow, which has a few broadcasts and groups, and hundreds of inputs.
_MAX_COMPARISONS, _MAX_SENDERS = 2_000_000, 500
_MAX_BYPASSED = 100
_TITLE_HEIGHT = 30
_SUBGRAPH_OUTPUT = "subgraph output node"
_BY_PATTERN = 4
_PATTERNS = ("title_regex", "input_regex", "group_regex")


@dataclass(frozen=True, kw_only=True, slots=True)
class FreeInput:
    """An unconnected input that accepts broadcasts. For a subgraph's output, `node_id` is the output boundary."""

    node_id: str
    title: str
    at: int
    slot: Slot

    @property
    def name(self) -> str:
        return self.slot.label or self.slot.name


@dataclass(frozen=True, kw_only=True, slots=True)
class Broadcast:
    """A value that a node sends to other nodes. `name` is set if only inputs with a matching name get it."""

    origin: str
    origin_slot: int
    type: str
    priority: float
    settings: Mapping[str, Any]
    patterns: Mapping[str, NamePattern | None]
    receivers: frozenset[str] | None
    name: str | None

    def matches(self, target: FreeInput) -> bool:
        return (
            self.origin != target.node_id
            and self._fits(target.slot.type)
            and (self.receivers is None or target.node_id in self.receivers)
            and (self.name is None or self._is_named(self.name, target))
            and _allows(self.patterns["title_regex"], target.title)
            and _allows(self.patterns["input_regex"], target.name)
        )

    def _fits(self, kind: str) -> bool:
        if self.type == kind:
            return True
        if kind == "*":
            return _is_positive(self.settings.get("send_to_any"))
        return self.type == "STRING" and kind == "COMBO" and _is_positive(self.settings.get("string_to_combo"))

    def _is_named(self, name: str, target: FreeInput) -> bool:
        size = min(len(name), len(target.name))
        match self.settings.get("repeated_type_rule"):
            case 1:
                return name[:size] == target.name[:size]
            case 2:
                return name[len(name) - size :] == target.name[len(target.name) - size :]
            case 3:
                return name == target.title
            case 4:  # _BY_PATTERN
                pattern = self.patterns["name"]
                return pattern is not None and pattern.is_found_in(target.name)
        return name == target.name


def connect_broadcasts(workflow: EditorWorkflow, node_definitions: Mapping[str, Any]) -> EditorWorkflow:
    """Return the workflow with the links that Use Everywhere adds, within each subgraph."""
    sheets = {"": workflow.root, **workflow.subgraphs}
    if not any(_broadcasts(node) for sheet in sheets.values() for node in sheet.nodes.values()):
        return workflow
    sources, budget = Sources(workflow, node_definitions), PatternBudget()
    connected = {key: _connect(sheet, sources, budget, is_root=not key) for key, sheet in sheets.items()}
    return replace(workflow, root=connected.pop(""), subgraphs=connected)


def is_broadcaster(node: Node) -> bool:
    """Whether a node only broadcasts. Such a node need not be installed on the server."""
    return node.type.startswith(BROADCASTS)


def _broadcasts(node: Node) -> bool:
    return is_broadcaster(node) or node.type == SEED_BROADCAST or bool(node.properties.get("ue_convert"))


def _connect(sheet: Sheet, sources: Sources, budget: PatternBudget, *, is_root: bool) -> Sheet:
    senders = [node for node in sheet.nodes.values() if _broadcasts(node) and not node.is_off]
    if len(senders) > _MAX_SENDERS or len(senders) * len(sheet.groups) * len(sheet.nodes) > _MAX_COMPARISONS:
        raise GraphError(
            f"The workflow is too large: more than {_MAX_SENDERS} Use Everywhere nodes, or too many groups."
        )
    broadcasts = [found for node in senders for found in _broadcasts_of(sheet, node, budget)]
    if not broadcasts:
        return sheet
    nodes, links, outputs = dict(sheet.nodes), dict(sheet.links), list(sheet.outputs)
    for sender in senders:
        if sender.type == SEED_BROADCAST and sources.definition(sender) is None:
            # The pack also replaces this node.
            nodes[sender.id] = replace(sender, type="PrimitiveInt")
    count = 0
    for target in _targets(sheet, sources, is_root=is_root):
        count += len(broadcasts)
        if count > _MAX_COMPARISONS:
            raise GraphError(f"The workflow is too large: more than {_MAX_COMPARISONS:,} inputs for Use Everywhere.")
        found = sorted((sent for sent in broadcasts if sent.matches(target)), key=lambda sent: -sent.priority)
        if not found or (len(found) > 1 and found[0].priority == found[1].priority):
            continue
        link_id = f"everywhere:{target.node_id}:{target.slot.name}"
        links[link_id] = GraphLink(found[0].origin, found[0].origin_slot, target.node_id, target.at, type=found[0].type)
        if target.node_id == OUTPUT_NODE:
            outputs[target.at] = replace(outputs[target.at], links=(link_id,))
        else:
            nodes[target.node_id] = _with_input(nodes[target.node_id], replace(target.slot, link=link_id))
    new: dict[int, list[str]] = {}
    for link_id, link in links.items():
        if link.origin == INPUT_NODE and link_id not in sheet.links:
            new.setdefault(link.origin_slot, []).append(link_id)
    inputs = [replace(port, links=(*port.links, *new.get(at, ()))) for at, port in enumerate(sheet.inputs)]
    return replace(sheet, nodes=nodes, links=links, inputs=tuple(inputs), outputs=tuple(outputs))


def _with_input(node: Node, slot: Slot) -> Node:
    known = any(other.name == slot.name for other in node.inputs)
    inputs = [slot if other.name == slot.name else other for other in node.inputs]
    return replace(node, inputs=tuple(inputs if known else [*inputs, slot]))


def _targets(sheet: Sheet, sources: Sources, *, is_root: bool) -> Iterator[FreeInput]:
    for node in sheet.nodes.values():
        if is_broadcaster(node) or node.type == SEED_BROADCAST or node.properties.get("rejects_ue_links"):
            continue
        stored = {slot.name: slot for slot in node.inputs}
        fields = _connectable_fields(node, is_root=is_root)
        refused = as_dict(as_dict(node.properties.get("ue_properties")).get("input_ue_unconnectable"))
        for at, slot in enumerate(sources.inputs(node)):
            own = stored.get(slot.name)
            shown = slot if own is None else replace(slot, label=own.label, widget=slot.widget or own.widget)
            is_connectable = slot.name in fields if shown.widget is not None else not refused.get(slot.name)
            if slot.link not in sheet.links and is_connectable:
                yield FreeInput(node_id=node.id, title=sources.title(node), at=at, slot=shown)
    for at, port in enumerate(sheet.outputs):
        if not any(link in sheet.links for link in port.links):
            yield FreeInput(node_id=OUTPUT_NODE, title=_SUBGRAPH_OUTPUT, at=at, slot=Slot(port.name, port.type))


def _connectable_fields(node: Node, *, is_root: bool) -> set[str]:
    """Return the fields that accept broadcasts. Before editor version 1.16, these were the inputs in the file."""
    given = as_dict(node.properties.get("ue_properties")).get("widget_ue_connectable")
    given = given or node.properties.get("widget_ue_connectable") if not isinstance(given, dict) else given
    if isinstance(given, dict):
        return {name for name, is_on in given.items() if is_on}
    return {slot.name for slot in node.inputs if is_root}


def _broadcasts_of(sheet: Sheet, node: Node, budget: PatternBudget) -> Iterator[Broadcast]:
    settings = _settings(node)
    values = [*_values(sheet, node, settings)]
    repeated = {kind for kind, count in Counter(kind for _, kind, _, _ in values).items() if count > 1}
    patterns = {key: budget.pattern(settings.get(key), settings.get(f"{key}_invert")) for key in _PATTERNS}
    receivers = _receivers(sheet, node, settings, patterns["group_regex"])
    priority = settings.get("priority") or _default_priority(node, settings, has_repeated=bool(repeated))
    is_pattern = settings.get("repeated_type_rule") == _BY_PATTERN
    for name, kind, origin, slot in values:
        is_named = node.type != SEED_BROADCAST and (kind in repeated or settings.get("apply_to_unrepeated"))
        yield Broadcast(
            origin=origin,
            origin_slot=slot,
            type=kind,
            priority=priority if isinstance(priority, int | float) else 0,
            settings=settings,
            patterns=patterns | {"name": budget.pattern(name, False) if is_named and is_pattern else None},
            receivers=receivers,
            name=name if is_named else None,
        )


def _settings(node: Node) -> Mapping[str, Any]:
    given = as_dict(node.properties.get("ue_properties"))
    if node.type == SEED_BROADCAST:
        return {**given, "input_regex": given.get("input_regex") or "seed"}
    if given.get("version") or not is_broadcaster(node):
        return given
    # Before version 7, the patterns were fields of the node.
    values = node.values if isinstance(node.values, list) else []
    return {
        **dict(zip(_PATTERNS, values, strict=False)),
        **{key: node.properties.get(key) for key in ("group_restricted", "color_restricted")},
    }


def _values(sheet: Sheet, node: Node, settings: Mapping[str, Any]) -> Iterator[tuple[str, str, str, int]]:
    """Yield the name, type, origin and output number of each value that a node sends."""
    if node.type == SEED_BROADCAST:
        yield "seed", "INT", node.id, 0
    elif not is_broadcaster(node):
        silent = as_dict(settings.get("output_not_broadcasting"))
        for at, (name, kind) in enumerate(zip(node.output_names, node.output_types, strict=True)):
            if not silent.get(name):
                yield name, kind, node.id, at
    else:
        sides = ("positive", "negative") if node.type == PROMPTS_BROADCAST else ()
        for at, slot in enumerate(node.inputs):
            link = _live_link(sheet, sheet.links.get(slot.link or ""))
            if link is not None:
                name = sides[at] if at < len(sides) else slot.label or slot.name
                yield name, link.type if link.type != "*" else slot.type, link.origin, link.origin_slot


def _live_link(sheet: Sheet, link: GraphLink | None) -> GraphLink | None:
    """Follow a link back through bypassed nodes, and return the link that comes from a running node."""
    for _ in range(_MAX_BYPASSED):
        if link is None or link.origin == INPUT_NODE:
            return link
        origin = sheet.nodes.get(link.origin)
        if origin is None or origin.mode != BYPASSED:
            return None if origin is None or origin.is_off else link
        same = origin.inputs[link.origin_slot : link.origin_slot + 1]
        kind = link.type
        passed = next((slot for slot in (*same, *origin.inputs) if slot.type == kind), None)
        link = None if passed is None else sheet.links.get(passed.link or "")
    return None


def _default_priority(node: Node, settings: Mapping[str, Any], *, has_repeated: bool) -> int:
    regexes = (*_PATTERNS, "prompt_regex", "negative_regex")
    is_restricted = any(isinstance(text := settings.get(key), str) and text not in ("", ".*") for key in regexes)
    return (
        10
        + 10 * (node.type == PROMPTS_BROADCAST)
        + 20 * (is_restricted or has_repeated)
        + 3 * _is_positive(settings.get("group_restricted"))
        + 6 * _is_positive(settings.get("color_restricted"))
    )


def _receivers(
    sheet: Sheet, node: Node, settings: Mapping[str, Any], pattern: NamePattern | None
) -> frozenset[str] | None:
    """Return the nodes that a node may send to, or `None` for all of them."""
    allowed: set[str] | None = None
    if (rule := settings.get("group_restricted")) in (1, 2):
        near = {other for group in _members(sheet) if node.id in group[1] for other in group[1]}
        allowed = near if rule == 1 else set(sheet.nodes) - near
    if (rule := settings.get("color_restricted")) in (1, 2):
        same = {other.id for other in sheet.nodes.values() if other.color == node.color}
        allowed = (set(sheet.nodes) if allowed is None else allowed) & (same if rule == 1 else set(sheet.nodes) - same)
    if pattern is not None:
        inside = {other for title, ids in _members(sheet) if pattern.is_found_in(title) for other in ids}
        allowed = inside if allowed is None else allowed & inside
    return None if allowed is None else frozenset(allowed)


def _members(sheet: Sheet) -> Sequence[tuple[str, set[str]]]:
    """Return the title and nodes of each group. A node belongs to every group that contains its centre."""
    centres = {
        node.id: (left + width / 2, top + (height - _TITLE_HEIGHT) / 2)
        for node in sheet.nodes.values()
        if node.box is not None
        for left, top, width, height in [node.box]
    }
    return [
        (group.title, {node_id for node_id, centre in centres.items() if _contains(group.box, centre)})
        for group in sheet.groups
    ]


def _contains(box: tuple[float, float, float, float], point: tuple[float, float]) -> bool:
    return box[0] <= point[0] <= box[0] + box[2] and box[1] <= point[1] <= box[1] + box[3]


def _allows(pattern: NamePattern | None, text: str) -> bool:
    return pattern is None or pattern.is_found_in(text)


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and value > 0
