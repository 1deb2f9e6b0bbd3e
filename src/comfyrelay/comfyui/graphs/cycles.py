"""Find cycles of links, which ComfyUI refuses."""

from collections.abc import Iterable

from comfyrelay.comfyui.graphs.graph import Graph, is_link
from comfyrelay.comfyui.graphs.nodes import output_nodes
from comfyrelay.errors import GraphError

_MAX_NAMED = 10


def blocked_nodes(graph: Graph) -> dict[str, list[str]]:
    """Return the nodes that can never run, each with its inputs' nodes that cannot run either. These are the nodes in
    a cycle of links, and the nodes that depend on them."""
    sources = {
        node_id: {value[0]: None for value in node["inputs"].values() if is_link(value) and value[0] in graph}
        for node_id, node in graph.items()
    }
    users: dict[str, list[str]] = {node_id: [] for node_id in graph}
    for node_id, needed in sources.items():
        for source in needed:
            users[source].append(node_id)
    ready = [node_id for node_id, needed in sources.items() if not needed]
    while ready:
        done = ready.pop()
        del sources[done]
        for user in users[done]:
            del sources[user][done]
            if not sources[user]:
                ready.append(user)
    return {node_id: list(needed) for node_id, needed in sources.items()}


def find_cycles(graph: Graph, outputs: Iterable[str]) -> list[list[str]]:
    """Return cycles, so that each output which cannot run depends on one of them. Each node of a cycle has an input
    from the next one."""
    blocked = blocked_nodes(graph)
    cycles: list[list[str]] = []
    visited: set[str] = set()
    for output in outputs:
        path: dict[str, None] = {}
        node_id = output
        # A node that another output visited leads to a known cycle.
        while node_id in blocked and node_id not in visited:
            visited.add(node_id)
            path[node_id] = None
            node_id = blocked[node_id][0]
        if node_id in path:
            nodes = list(path)
            cycles.append(nodes[nodes.index(node_id) :])
    return cycles


def check_cycles(graph: Graph, output: str | None) -> None:
    """Raise `GraphError` if the output depends on a cycle. Without an output, raise it if no output can run."""
    outputs = output_nodes(graph) if output is None else [output]
    blocked = blocked_nodes(graph)
    if outputs and all(node_id in blocked for node_id in outputs):
        raise cycle_error(find_cycles(graph, outputs)[0])


def cycle_error(nodes: list[str]) -> GraphError:
    return GraphError(f"The links of these nodes form a cycle: {', '.join(nodes[:_MAX_NAMED])}.")
