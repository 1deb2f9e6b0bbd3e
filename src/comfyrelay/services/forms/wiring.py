"""Links between the nodes of a graph."""

from collections.abc import Callable, Iterable, Iterator

from comfyrelay.comfyui.graphs.graph import Graph, is_link
from comfyrelay.text import natural_key

# Source node and index of its output.
Link = tuple[str, float]


class Wiring:
    """The links of a graph, without links to missing nodes."""

    def __init__(self, graph: Graph) -> None:
        self.links: dict[str, dict[str, Link]] = {
            node_id: {
                name: (value[0], value[1])
                for name, value in node["inputs"].items()
                if is_link(value) and value[0] in graph
            }
            for node_id, node in graph.items()
        }
        self._users: dict[str, list[tuple[str, str, float]]] = {node_id: [] for node_id in graph}
        for user, links in self.links.items():
            for name, (source, slot) in links.items():
                self._users[source].append((user, name, slot))

    def dependencies_of(self, node_ids: Iterable[str]) -> set[str]:
        """Return these nodes and all nodes upstream of them."""
        found: set[str] = set()
        pending = list(node_ids)
        while pending:
            node_id = pending.pop()
            if node_id not in found:
                found.add(node_id)
                pending.extend(source for source, _ in self.links[node_id].values())
        return found

    def count_dependencies(self) -> dict[str, int]:
        """Count the nodes upstream of each node, including itself. In a cycle, which cannot run, the count may be too
        low.

        Sets are integers with one bit per node, because each of thousands of nodes may depend on all others.
        """
        needed: dict[str, int] = {}
        for place, node_id in enumerate(self.topological_order()):
            found = 1 << place
            for source in {source for source, _ in self.links[node_id].values()}:
                found |= needed.get(source, 0)
            needed[node_id] = found
        return {node_id: found.bit_count() for node_id, found in needed.items()}

    def topological_order(self) -> list[str]:
        """Return the nodes after their dependencies. The order does not depend on the order in the file."""
        found: dict[str, None] = {}
        entered: set[str] = set()
        pending = sorted(self.links, key=natural_key, reverse=True)
        while pending:
            node_id = pending[-1]
            if node_id in entered:
                found.setdefault(pending.pop())
                continue
            entered.add(node_id)
            sources = {source for source, _ in self.links[node_id].values()} - entered
            pending.extend(sorted(sources, key=natural_key, reverse=True))
        return list(found)

    def upstream(self, is_wanted: Callable[[str, str], bool]) -> set[str]:
        """Return the nodes whose first output reaches an input for which `is_wanted(node, input)` is true."""
        wanted = [
            (source, slot)
            for user, links in self.links.items()
            for name, (source, slot) in links.items()
            if is_wanted(user, name)
        ]
        upstream = self.dependencies_of({source for source, _ in wanted})
        later = ((source, slot) for user in upstream for source, slot in self.links[user].values())
        return {source for source, slot in (*wanted, *later) if slot == 0}

    def downstream(self, node_id: str) -> Iterator[tuple[str, str]]:
        """Yield the nodes and inputs that the first output of a node reaches."""
        seen = {node_id}
        pending = [link for link in self._users[node_id] if link[2] == 0]
        while pending:
            user, name, _ = pending.pop()
            yield user, name
            if user not in seen:
                seen.add(user)
                pending.extend(self._users[user])
