"""The values of a graph, and how they come to the inputs that need them."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from comfyrelay.comfy.graphs.graph import Graph
from comfyrelay.domain.properties import PropertyType
from comfyrelay.services.forms.inputs import Input, Specs, specs_of
from comfyrelay.services.forms.wiring import Wiring

_NUMBER_WORDS = frozenset({"seed", "value", "int", "number"})


class Tracing:
    def __init__(self, graph: Graph, inputs: Iterable[Input], object_info: Mapping[str, Any]) -> None:
        self.graph = graph
        self.object_info = object_info
        self.wiring = Wiring(graph)
        self.order = self.wiring.in_order()
        self.inputs = {each.position: each for each in inputs}
        self.of_node: dict[str, list[Input]] = {node_id: [] for node_id in graph}
        for each in self.inputs.values():
            self.of_node[each.node_id].append(each)

    def specs(self, node_id: str) -> Specs:
        return specs_of(self.graph[node_id], self.object_info)

    def class_of(self, node_id: str) -> str:
        return str(self.graph[node_id]["class_type"])

    def numbers(self, node_id: str, name: str) -> Iterator[Input]:
        """The whole number that an input is, or that comes to it from a node which holds one."""
        seen = set()
        pending = [(node_id, name)]
        while pending:
            position = pending.pop()
            if position in seen:
                continue
            seen.add(position)
            found = self.inputs.get(position)
            if found is not None and found.type is PropertyType.NUMBER and isinstance(found.value, int):
                yield found
            source = self.wiring.links[position[0]].get(position[1])
            if source is not None:
                inputs = self.graph[source[0]]["inputs"]
                pending.extend((source[0], each) for each in inputs if _NUMBER_WORDS & set(words_in(each)))


def words_in(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", name.lower())
