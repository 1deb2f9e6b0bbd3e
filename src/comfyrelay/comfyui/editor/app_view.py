"""Read the form that an author made for ComfyUI's app view: inputs with their labels, and outputs.

The file refers to fields on the canvas; the result refers to inputs and nodes of the converted graph.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any
from urllib.parse import unquote

from comfyrelay.comfyui.editor.convert import inputs_of, open_workflow, running_nodes
from comfyrelay.comfyui.editor.editor_only_nodes import PRIMITIVE
from comfyrelay.comfyui.editor.sources import Scope, Sources
from comfyrelay.comfyui.editor.widgets import StoredValue
from comfyrelay.comfyui.editor.workflow import AppField, AppView, EditorWorkflow, Node, as_dict, as_list

# Authors pick each entry by hand, so real files have far fewer.
_MAX_ENTRIES = 1000


@dataclass(frozen=True, slots=True)
class _Field:
    """A field on the canvas: its label, its place in the file, and the use of a subgraph that it belongs to."""

    label: str
    stored: StoredValue
    path: tuple[str, ...] = ()


def read_app_view(value: Mapping[str, Any], node_definitions: Mapping[str, Any]) -> AppView:
    """Return the app view of a convertible editor file. Entries for fields that no longer exist are skipped."""
    stored = as_dict(as_dict(value.get("extra")).get("linearData"))
    inputs, outputs = (as_list(stored.get(name))[:_MAX_ENTRIES] for name in ("inputs", "outputs"))
    if not inputs and not outputs:
        return AppView()
    workflow = open_workflow(value, node_definitions)
    sources = Sources(workflow, node_definitions)
    reader = _Reader(workflow, sources)
    fields = [field for entry in inputs if (field := reader.field(entry)) is not None]
    found: dict[tuple[int, Any], list[tuple[Scope, str, str]]] = {}
    node_ids: list[str] = []
    for scope, node in running_nodes(reader.root, sources):
        node_ids.append(scope.id_of(node))
        for name, source in inputs_of(sources, scope, node).items():
            if isinstance(source, StoredValue):
                found.setdefault((id(source.values), source.at), []).append((scope, node_ids[-1], name))
    return AppView(fields=list(_unique_fields(fields, found)), outputs=list(_named_nodes(outputs, node_ids)))


def _unique_fields(
    fields: Sequence[_Field], found: Mapping[tuple[int, Any], Sequence[tuple[Scope, str, str]]]
) -> Iterator[AppField]:
    taken: set[tuple[str, str]] = set()
    for field in fields:
        # Two uses of a subgraph may share a value inside the subgraph.
        inputs = [
            (node_id, name)
            for scope, node_id, name in found.get((id(field.stored.values), field.stored.at), ())
            if scope.path[: len(field.path)] == field.path
        ]
        if inputs and taken.isdisjoint(inputs):
            taken.update(inputs)
            yield AppField(label=field.label, inputs=tuple(inputs))


def _named_nodes(entries: Sequence[Any], node_ids: Sequence[str]) -> Iterator[str]:
    """Yield the ids of the output nodes in the graph. The file has the inner id of a node inside a subgraph."""
    by_own_id: dict[str, str] = {}
    for node_id in sorted(node_ids, key=lambda node_id: node_id.count(":")):
        by_own_id.setdefault(node_id.rpartition(":")[2], node_id)
    names = (str(entry) for entry in entries if isinstance(entry, int | str))
    yield from dict.fromkeys(by_own_id[name] for name in names if name in by_own_id)


class _Reader:
    def __init__(self, workflow: EditorWorkflow, sources: Sources) -> None:
        self.root = Scope(workflow.root)
        self._sources = sources

    def field(self, entry: Any) -> _Field | None:
        """Return the field of an entry: a node or widget id, a name, and optional settings."""
        match entry:
            case [int() | str() as stored_id, str() as name, *_]:
                return self._named(str(stored_id), name)
        return None

    def _named(self, stored_id: str, name: str) -> _Field | None:
        match stored_id.split(":"):
            case [_, node_id, widget]:
                # A widget id: the file's id, the node and the widget.
                return self._shown(unquote(node_id), unquote(widget))
            case [_, node_id]:
                # The form of some versions: a subgraph and one of its nodes.
                return self._shown(node_id, name)
            case [node_id]:
                return self._shown(node_id, name) or self._inside(node_id, name)
        return None

    def _shown(self, node_id: str, name: str) -> _Field | None:
        """Return a field of a node on the outermost canvas, unless the node is off or a link sets the field."""
        node = self.root.sheet.nodes.get(node_id)
        if node is None or node.is_off:
            return None
        if (inside := self._sources.inside(self.root, node)) is not None:
            return self._promoted(node, inside, name) or self._proxied(node, inside, name)
        return self._own(self.root, node, name)

    def _own(self, scope: Scope, node: Node, name: str) -> _Field | None:
        if node.type == PRIMITIVE:
            # A primitive has one value. Its name is that of the first linked input, or `value`.
            return _Field(_label(node, name), StoredValue(None, node.values, 0), scope.path)
        stored = self._sources.fields(scope, node).get(name)
        slots = self._sources.inputs(node)
        if stored is None or any(slot.name == name and slot.link is not None for slot in slots):
            return None
        options = next((spec.options for spec in self._sources.specs(node) if spec.name == name), {})
        return _Field(_label(node, name, options.get("display_name")), stored, scope.path)

    def _promoted(self, node: Node, inside: Scope, name: str) -> _Field | None:
        """Return a field that a subgraph shows as one of its inputs."""
        stored = self._sources.promoted_fields(node, inside.sheet).get(name)
        port = next((port for port in inside.sheet.inputs if port.name == name), None)
        linked = any(slot.name == name and slot.link is not None for slot in node.inputs)
        if stored is None or port is None or linked:
            return None
        return _Field(_label(node, name, port.label), stored, inside.path)

    def _proxied(self, node: Node, inside: Scope, name: str) -> _Field | None:
        """Return a field of an inner node that a subgraph shows without a corresponding input."""
        for inner, widget in _proxies(node):
            if widget == name and inner in inside.sheet.nodes:
                return self._own(inside, inside.sheet.nodes[inner], widget)
        return None

    def _inside(self, node_id: str, name: str) -> _Field | None:
        """Return the field of an inner node if only one subgraph shows it. Older versions stored the inner node's
        id."""
        found = islice(self._shown_for(node_id, name), 2)
        match list(found):
            case [field]:
                return field
        return None

    def _shown_for(self, node_id: str, name: str) -> Iterator[_Field]:
        for node in self.root.sheet.nodes.values():
            inside = None if node.is_off else self._sources.inside(self.root, node)
            if inside is None or node_id not in inside.sheet.nodes:
                continue
            inner = inside.sheet.nodes[node_id]
            slot = next((slot for slot in inner.inputs if name in (slot.widget, slot.name)), None)
            ports = inside.sheet.inputs
            port = None if slot is None else next((port for port in ports if slot.link in port.links), None)
            if port is not None:
                field = self._promoted(node, inside, port.name)
            else:
                field = self._own(inside, inner, name) if (node_id, name) in _proxies(node) else None
            if field is not None:
                yield field


def _proxies(node: Node) -> Iterator[tuple[str, str]]:
    for entry in as_list(node.properties.get("proxyWidgets")):
        match entry:
            case [int() | str() as inner, str() as widget, *_]:
                yield str(inner), widget


def _label(node: Node, name: str, shown: object = None) -> str:
    """Return the label in the app view: the author's label, the display name, or the field name."""
    own = next((slot.label for slot in node.inputs if name in (slot.widget, slot.name) and slot.label), None)
    return own or (shown if isinstance(shown, str) and shown else name)
