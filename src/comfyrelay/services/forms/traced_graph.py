"""Find the inputs of each node of a graph, and the numbers that reach an input through links."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.domain.properties import PropertyType
from comfyrelay.services.forms.inputs import GraphInput, Specs, specs_of
from comfyrelay.services.forms.wiring import Wiring

# Maximum number of inputs that are visited to find a number. Usually, only a few nodes are involved.
_MAX_STEPS = 100
_NUMBER_WORDS = frozenset({"seed", "value", "int", "number"})
# A switch passes on one of its inputs. The other inputs choose which one.
_SWITCH = re.compile(r"switch|if_?else|select", re.IGNORECASE)
_CHOOSERS = frozenset({"switch", "select", "selected", "boolean", "bool", "condition", "index", "mode"})


class TracedGraph:
    def __init__(self, graph: Graph, inputs: Iterable[GraphInput], object_info: Mapping[str, Any]) -> None:
        self.graph = graph
        self.object_info = object_info
        self.wiring = Wiring(graph)
        self.order = self.wiring.topological_order()
        self.inputs = {input_.position: input_ for input_ in inputs}
        self.of_node: dict[str, list[GraphInput]] = {node_id: [] for node_id in graph}
        for input_ in self.inputs.values():
            self.of_node[input_.node_id].append(input_)
        self._numbers_from: dict[str, Sequence[GraphInput]] = {}
        self._number_inputs: dict[str, list[str]] = {}

    def specs(self, node_id: str) -> Specs:
        return specs_of(self.graph[node_id], self.object_info)

    def class_of(self, node_id: str) -> str:
        return str(self.graph[node_id]["class_type"])

    def numbers(self, node_id: str, name: str) -> Sequence[GraphInput]:
        """Return the integer of an input, or the integers that reach it through links."""
        if (source := self.wiring.links[node_id].get(name)) is None:
            found = self.inputs.get((node_id, name))
            return [found] if found is not None and _is_whole(found) else []
        if source[0] not in self._numbers_from:
            # Cached, because hundreds of inputs may use the same source.
            self._numbers_from[source[0]] = self._upstream_numbers(source[0])
        return self._numbers_from[source[0]]

    def _upstream_numbers(self, node_id: str) -> list[GraphInput]:
        found: list[GraphInput] = []
        entered = {node_id}
        pending = [(node_id, number_name) for number_name in self._number_names(node_id)]
        for _ in range(_MAX_STEPS):
            if not pending:
                break
            position = pending.pop()
            own = self.inputs.get(position)
            if own is not None and _is_whole(own):
                found.append(own)
            source, _ = self.wiring.links[position[0]].get(position[1], (node_id, 0))
            if source not in entered:
                entered.add(source)
                pending.extend((source, name) for name in self._number_names(source))
        return found

    def _number_names(self, node_id: str) -> list[str]:
        """Return the inputs of a node whose names suggest a number. For a switch, return the inputs that it may pass
        on."""
        if node_id not in self._number_inputs:
            names = self.graph[node_id]["inputs"]
            is_switch = _SWITCH.search(self.class_of(node_id)) is not None
            found = [
                name
                for name in names
                if _NUMBER_WORDS & set(words_in(name)) or (is_switch and not _CHOOSERS & set(words_in(name)))
            ]
            self._number_inputs[node_id] = found[-_MAX_STEPS:]
        return self._number_inputs[node_id]


def _is_whole(input_: GraphInput) -> bool:
    return input_.type is PropertyType.NUMBER and isinstance(input_.value, int)


def group_by_value(inputs: Iterable[GraphInput]) -> list[list[GraphInput]]:
    groups: dict[object, list[GraphInput]] = {}
    for input_ in inputs:
        groups.setdefault(input_.value, []).append(input_)
    return list(groups.values())


def words_in(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", name.lower())
