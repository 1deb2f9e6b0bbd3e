"""Resolve references to nodes in the file names of savers, such as `%KSampler.seed%`.

Only the editor file has the names of nodes. The graph refers to the same nodes by their ids, so that each job fills in
its own values.
"""

from collections.abc import Iterator
from itertools import islice

from comfyrelay.comfyui.editor.editor_only_nodes import PRIMITIVE
from comfyrelay.comfyui.editor.sources import DEEPEST_SUBGRAPH, Scope, Sources
from comfyrelay.comfyui.editor.widgets import first_value
from comfyrelay.comfyui.editor.workflow import Node
from comfyrelay.comfyui.graphs.file_names import PREFIX, replace_texts, texts_of, value_text
from comfyrelay.comfyui.graphs.graph import Graph

_NAME = "Node name for S&R"
# Limited, because muted subgraphs are also searched, but were not counted by the conversion.
_MAX_SEARCHED = 20_000


def name_nodes_by_id(graph: Graph, sources: Sources, root: Scope) -> None:
    """Replace node names in file names by node ids, or by the value itself if the graph does not contain the value."""
    prefixes = [(node["inputs"], prefix) for node in graph.values() if (prefix := texts_of(node)) is not None]
    if not prefixes:
        return
    found = list(islice(_all_nodes(root, sources), _MAX_SEARCHED))[::-1]
    # Of duplicates, the first node is used. A node's own name takes precedence over titles.
    named = {sources.title(node): (scope, node) for scope, node in found}
    named |= {name: (scope, node) for scope, node in found if isinstance(name := node.properties.get(_NAME), str)}

    def value_of(name: str, widget: str) -> str | None:
        return _reference(graph, sources, *named[name], widget) if name in named else None

    for inputs, prefix in prefixes:
        inputs[PREFIX] = replace_texts(prefix, value_of, None)


def _reference(graph: Graph, sources: Sources, scope: Scope, node: Node, widget: str) -> str | None:
    node_id = scope.id_of(node)
    sent = graph.get(node_id, {}).get("inputs", {})
    if widget in sent and not isinstance(sent[widget], list | dict):
        return f"%{node_id}.{widget}%"
    if node.type == PRIMITIVE:
        return value_text(first_value(node.values)) if widget == "value" else None
    stored = sources.fields(scope, node).get(widget)
    return None if stored is None else value_text(stored.value)


def _all_nodes(scope: Scope, sources: Sources) -> Iterator[tuple[Scope, Node]]:
    """Yield all nodes in the editor's order: the nodes inside a subgraph before the subgraph's own node."""
    for node in scope.sheet.nodes.values():
        inside = sources.inside(scope, node)
        if inside is not None and len(inside.path) <= DEEPEST_SUBGRAPH:
            yield from _all_nodes(inside, sources)
        yield scope, node
