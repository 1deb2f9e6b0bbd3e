"""Read editor files in formats 0.4 and 1.0: nodes, slots, links and subgraphs.

Parts with an unexpected shape are ignored.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from comfyrelay.errors import GraphError

# The editor uses numbers or UUIDs as node ids. Ids of nodes inside subgraphs are joined.
_LONGEST_ID = 100

# Ids of a subgraph's boundary, where links from and to the outside start and end.
INPUT_NODE, OUTPUT_NODE = "-10", "-20"
# Nothing beyond this can be seen on a canvas.
_MAX_COORDINATE = 1e12
# Modes of nodes that do not run. A bypassed node passes on its input.
MUTED, BYPASSED = 2, 4

# Node types that ComfyUI has renamed.
_RENAMED = {
    "T2IAdapterLoader": "ControlNetLoader",
    "ConditioningAverage ": "ConditioningAverage",
    "SDV_img2vid_Conditioning": "SVD_img2vid_Conditioning",
    "Load3DAnimation": "Load3D",
    "Preview3DAnimation": "Preview3D",
}


Box = tuple[float, float, float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class AppField:
    """A field of the app view, and the graph inputs that it sets, as node id and input name."""

    label: str
    inputs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class AppView:
    """The fields and the output nodes in the author's order. An empty list means that the author chose none."""

    fields: Sequence[AppField] = ()
    outputs: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Slot:
    """An input of a node. `widget` is the name of the field that the link replaces, `label` the displayed name."""

    name: str
    type: str = "*"
    link: str | None = None
    widget: str | None = None
    label: str | None = None


@dataclass(frozen=True, slots=True)
class GraphLink:
    origin: str
    origin_slot: int
    target: str
    # The position of the input in the target's list; unknown in group nodes.
    target_slot: int | None = None
    type: str = "*"


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    id: str
    type: str
    mode: int
    title: str | None
    inputs: tuple[Slot, ...]
    output_types: tuple[str, ...]
    # Field values by position, or by name, as some node packs store them.
    values: list[Any] | dict[str, Any]
    properties: Mapping[str, Any]
    output_names: tuple[str, ...] = ()
    color: str | None = None
    # Left, top, width and height on the canvas, without the title.
    box: Box | None = None

    @property
    def is_off(self) -> bool:
        return self.mode in (MUTED, BYPASSED)


@dataclass(frozen=True, slots=True)
class SubgraphPort:
    """An input or output of a subgraph, with its links inside."""

    name: str
    type: str
    links: tuple[str, ...]
    label: str | None = None


@dataclass(frozen=True, slots=True)
class CanvasGroup:
    """A colored frame around nodes."""

    title: str
    box: Box


@dataclass(frozen=True, slots=True, eq=False)
class Sheet:
    """One graph of the file: the workflow itself or the inside of a subgraph."""

    nodes: Mapping[str, Node]
    links: Mapping[str, GraphLink]
    inputs: tuple[SubgraphPort, ...] = ()
    outputs: tuple[SubgraphPort, ...] = ()
    groups: tuple[CanvasGroup, ...] = ()

    def link_to_output(self, at: int) -> GraphLink | None:
        """Return the inner link that leads to an output of the subgraph."""
        links = self.outputs[at].links if at < len(self.outputs) else ()
        return next((self.links[link] for link in links if link in self.links), None)


@dataclass(frozen=True, slots=True)
class EditorWorkflow:
    root: Sheet
    # Subgraphs by the type of the nodes that represent them.
    subgraphs: Mapping[str, Sheet]
    # Group nodes, the predecessors of subgraphs, as stored in the file.
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def is_editor_file(value: object) -> bool:
    """Whether this is a workflow saved by the editor."""
    return isinstance(value, dict) and isinstance(value.get("nodes"), list)


def editor_file_in(extra_data: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the editor file that was sent with a graph, if any."""
    info = extra_data.get("extra_pnginfo")
    workflow = info.get("workflow") if isinstance(info, dict) else None
    return workflow if isinstance(workflow, dict) and is_editor_file(workflow) else None


def read_workflow(value: Mapping[str, Any]) -> EditorWorkflow:
    root = read_sheet(value)
    if not root.nodes:
        raise GraphError("The workflow has no nodes.")
    subgraphs: dict[str, Sheet] = {}
    pending = list(subgraphs_in(value))
    while pending:
        definition = pending.pop()
        if str(definition.get("id")) not in subgraphs:
            subgraphs[str(definition.get("id"))] = read_sheet(definition)
            pending.extend(subgraphs_in(definition))
    groups = as_dict(as_dict(value.get("extra")).get("groupNodes"))
    return EditorWorkflow(
        root=root, subgraphs=subgraphs, groups={name: as_dict(group) for name, group in groups.items()}
    )


def read_sheet(value: Mapping[str, Any]) -> Sheet:
    nodes = [read_node(node) for node in _dicts(value.get("nodes"))]
    if any(len(node.id) > _LONGEST_ID for node in nodes):
        raise GraphError(f"The workflow has a node whose id is longer than {_LONGEST_ID} characters.")
    links: dict[str, GraphLink] = {}
    for link_id, link in _links(value.get("links")):
        # Of duplicates, the first is used.
        links.setdefault(link_id, link)
    outputs = _ports(value.get("outputs"))
    return Sheet(
        nodes=_repair_links({node.id: node for node in nodes}, links),
        links=links,
        inputs=tuple(_ports(value.get("inputs"))),
        # Of duplicates, the first is used.
        outputs=tuple(replace(port, links=tuple(link for link in port.links if link in links)[:1]) for port in outputs),
        groups=tuple(_groups(value.get("groups"))),
    )


def read_node(value: Mapping[str, Any], *, node_id: str | None = None) -> Node:
    node_type = str(value.get("type") or "")
    stored = value.get("widgets_values")
    mode = value.get("mode")
    title = value.get("title")
    return Node(
        id=str(value.get("id")) if node_id is None else node_id,
        type=_RENAMED.get(node_type, node_type),
        mode=mode if isinstance(mode, int) else 0,
        title=title if isinstance(title, str) and title else None,
        inputs=tuple(_slot(slot) for slot in _dicts(value.get("inputs"))),
        output_types=tuple(type_name(slot.get("type")) for slot in _dicts(value.get("outputs"))),
        values=stored if isinstance(stored, list | dict) else [],
        properties=as_dict(value.get("properties")),
        output_names=tuple(str(slot.get("name")) for slot in _dicts(value.get("outputs"))),
        color=color if isinstance(color := value.get("color"), str) else None,
        box=_box([*_pair(value.get("pos")), *_pair(value.get("size"))]),
    )


def type_name(value: object) -> str:
    """Return a slot's type. Lists of choices have their own type; 0 or a missing type means any type."""
    if isinstance(value, list):
        return "COMBO"
    return value if isinstance(value, str) and value else "*"


def _groups(value: object) -> Iterator[CanvasGroup]:
    for group in _dicts(value):
        if (box := _box(as_list(group.get("bounding")))) is not None:
            yield CanvasGroup(str(group.get("title") or ""), box)


def _pair(value: object) -> list[Any]:
    """Return a position or a size. Older files store it as an object with the keys 0 and 1."""
    return [value.get("0"), value.get("1")] if isinstance(value, dict) else as_list(value)[:2]


def _box(numbers: list[Any]) -> Box | None:
    match numbers:
        case [int() | float() as left, int() | float() as top, int() | float() as width, int() | float() as height]:
            is_finite = all(abs(number) < _MAX_COORDINATE for number in (left, top, width, height))
            return (float(left), float(top), float(width), float(height)) if is_finite else None
    return None


def subgraphs_in(value: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    return _dicts(as_dict(value.get("definitions")).get("subgraphs"))


def _slot(value: Mapping[str, Any]) -> Slot:
    widget = as_dict(value.get("widget")).get("name")
    return Slot(
        name=str(value.get("name")),
        type=type_name(value.get("type")),
        link=None if value.get("link") is None else str(value["link"]),
        widget=widget if isinstance(widget, str) else None,
        label=_label(value),
    )


def _label(value: Mapping[str, Any]) -> str | None:
    label = value.get("label")
    return label if isinstance(label, str) and label else None


def _links(value: object) -> Iterator[tuple[str, GraphLink]]:
    for stored in as_list(value):
        match stored:
            case [link, origin, int() as slot, target, target_slot, *kind] if slot >= 0:
                yield str(link), _link(origin, slot, target, target_slot, kind[0] if kind else None)
            case {"id": link, "origin_id": origin, "origin_slot": int() as slot, "target_id": target} if slot >= 0:
                yield str(link), _link(origin, slot, target, stored.get("target_slot"), stored.get("type"))


def _link(origin: object, slot: int, target: object, target_slot: object, kind: object) -> GraphLink:
    at = target_slot if isinstance(target_slot, int) and target_slot >= 0 else None
    return GraphLink(str(origin), slot, str(target), at, type_name(kind))


def _repair_links(nodes: Mapping[str, Node], links: Mapping[str, GraphLink]) -> dict[str, Node]:
    """Correct the links of nodes that disagree with the table of links.

    An input keeps its link if, according to the table, the link leads to this node. A link that is in no input belongs
    to the input at its position, if that is free.
    """
    slots = {
        node.id: [slot if _leads_to(links, slot.link, node) else replace(slot, link=None) for slot in node.inputs]
        for node in nodes.values()
    }
    named = {(node_id, slot.link) for node_id, inputs in slots.items() for slot in inputs}
    for link_id, link in links.items():
        inputs, at = slots.get(link.target, []), link.target_slot
        is_unnamed = at is not None and at < len(inputs) and (link.target, link_id) not in named
        if is_unnamed and at is not None and inputs[at].link is None and _has_origin(nodes, link):
            inputs[at] = replace(inputs[at], link=link_id)
    return {
        node.id: node if tuple(slots[node.id]) == node.inputs else replace(node, inputs=tuple(slots[node.id]))
        for node in nodes.values()
    }


def _leads_to(links: Mapping[str, GraphLink], link_id: str | None, node: Node) -> bool:
    return link_id is None or link_id not in links or links[link_id].target == node.id


def _has_origin(nodes: Mapping[str, Node], link: GraphLink) -> bool:
    return link.origin == INPUT_NODE or link.origin in nodes


def _ports(value: object) -> Iterator[SubgraphPort]:
    for port in _dicts(value):
        links = tuple(str(link) for link in as_list(port.get("linkIds")))
        yield SubgraphPort(str(port.get("name")), type_name(port.get("type")), links, _label(port))


def as_dict(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _dicts(value: object) -> Iterator[Mapping[str, Any]]:
    return (item for item in as_list(value) if isinstance(item, dict))
