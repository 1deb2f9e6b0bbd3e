"""How the nodes of a graph hang together."""

from collections.abc import Callable, Iterable, Iterator

from comfyrelay.comfyui.graphs.graph import Graph, is_link
from comfyrelay.text import natural

# The node that a value comes from, and which of its outputs it is.
Link = tuple[str, float]


class Wiring:
    """The links of a graph. One that leads nowhere does not count."""

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

    def needed_by(self, node_ids: Iterable[str]) -> set[str]:
        """These nodes, and all from which something comes to them."""
        found: set[str] = set()
        pending = list(node_ids)
        while pending:
            node_id = pending.pop()
            if node_id not in found:
                found.add(node_id)
                pending.extend(source for source, _ in self.links[node_id].values())
        return found

    def counts_of_needed(self) -> dict[str, int]:
        """How many nodes each needs, with itself. In a circle, which never runs, it may be less.

        As sets of bits, since for each of thousands of nodes all the others may have to be put together.
        """
        needed: dict[str, int] = {}
        for place, node_id in enumerate(self.in_order()):
            found = 1 << place
            for source in {source for source, _ in self.links[node_id].values()}:
                found |= needed.get(source, 0)
            needed[node_id] = found
        return {node_id: found.bit_count() for node_id, found in needed.items()}

    def in_order(self) -> list[str]:
        """The nodes, each after those that it needs; the same order however the file was written."""
        found: dict[str, None] = {}
        entered: set[str] = set()
        pending = sorted(self.links, key=natural, reverse=True)
        while pending:
            node_id = pending[-1]
            if node_id in entered:
                found.setdefault(pending.pop())
                continue
            entered.add(node_id)
            sources = {source for source, _ in self.links[node_id].values()} - entered
            pending.extend(sorted(sources, key=natural, reverse=True))
        return list(found)

    def before(self, is_wanted: Callable[[str, str], bool]) -> set[str]:
        """The nodes whose first output goes, at last, into such an input: `is_wanted` of a node and its input."""
        wanted = [
            (source, slot)
            for user, links in self.links.items()
            for name, (source, slot) in links.items()
            if is_wanted(user, name)
        ]
        ways = self.needed_by({source for source, _ in wanted})
        later = ((source, slot) for user in ways for source, slot in self.links[user].values())
        return {source for source, slot in (*wanted, *later) if slot == 0}

    def follows(self, node_id: str) -> Iterator[tuple[str, str]]:
        """Where a node's first output goes, and on from there: nodes, each with the input that it comes in by."""
        seen = {node_id}
        pending = [link for link in self._users[node_id] if link[2] == 0]
        while pending:
            user, name, _ = pending.pop()
            yield user, name
            if user not in seen:
                seen.add(user)
                pending.extend(self._users[user])
