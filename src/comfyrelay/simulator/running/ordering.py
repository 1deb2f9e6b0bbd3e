"""Choose the node that runs next.

A node is ready when its inputs have run. Among ready nodes, output nodes go first, then nodes one step before an output
node, then two steps, then the first found.
"""

from collections.abc import Collection, Iterable, Iterator

from comfyrelay.comfyui.graphs.graph import Graph, is_link

_MAX_DISTANCE = 2


class RunOrder:
    def __init__(
        self, graph: Graph, *, outputs: Iterable[str], output_nodes: Collection[str], cached: Collection[str]
    ) -> None:
        self._output_nodes = output_nodes
        # Nodes that each node waits for, in discovery order.
        self._dependencies: dict[str, set[str]] = {}
        for output in outputs:
            self._find(graph, output, cached)
        self._dependents: dict[str, set[str]] = {node: set() for node in self._dependencies}
        for node, needed in self._dependencies.items():
            for source in needed:
                self._dependents[source].add(node)

    def __iter__(self) -> Iterator[str]:
        """Yield each node once. The caller must run each node before it requests the next."""
        while self._dependencies:
            node = self._pick([node for node, needed in self._dependencies.items() if not needed])
            yield node
            del self._dependencies[node]
            for dependent in self._dependents[node]:
                self._dependencies[dependent].discard(node)

    def _find(self, graph: Graph, start: str, cached: Collection[str]) -> None:
        pending = [start]
        while pending:
            node = pending.pop()
            if node in self._dependencies:
                continue
            links = [value[0] for value in graph[node]["inputs"].values() if is_link(value)]
            # A list may look like a link without being one.
            needed = [link for link in links if link in graph and link not in cached]
            self._dependencies[node] = set(needed)
            pending += needed

    def _pick(self, ready: list[str]) -> str:
        for steps in range(_MAX_DISTANCE + 1):
            for node in ready:
                if self._reaches_output(node, steps):
                    return node
        return ready[0]

    def _reaches_output(self, node: str, steps: int) -> bool:
        if steps == 0:
            return node in self._output_nodes
        return any(self._reaches_output(dependent, steps - 1) for dependent in self._dependents[node])
