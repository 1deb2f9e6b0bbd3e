"""Policy check of the texts that a guest of a desk submits.

A desk has no policy, because its owner writes the graphs. Guests only fill in texts of these graphs, so their texts
must follow the policy for tenants. The owner's texts, such as defaults, may name anything.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from comfyrelay.comfyui.graphs.graph import Graph, is_link, replace_placeholders, texts_in
from comfyrelay.comfyui.graphs.placeholders import placeholders_of
from comfyrelay.comfyui.graphs.policy import GraphPolicy
from comfyrelay.domain.properties import Property, PropertyType, Value
from comfyrelay.errors import GraphNotAllowed, InvalidInput

REFUSED_TEXT = (
    "A guest cannot set this to a path, an address or a command. Leave it unchanged, or ask the owner of the desk."
)


class GuestInputs:
    """Checks the texts of a guest for one graph."""

    def __init__(self, policy: GraphPolicy, graph: Graph, properties: Sequence[Property]) -> None:
        # On a desk, the policy is off.
        self._policy = replace(policy, mode="deny") if policy.mode == "off" else policy
        self._graph = graph
        self._files = frozenset(prop.placeholder for prop in properties if prop.is_asset)
        # The inputs that link to each node.
        self._links: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for id_, name, value in _inputs(graph):
            if is_link(value):
                self._links[value[0]].append((id_, name))
        self._inputs_of: dict[str, Graph] = {}
        self._allowed: set[tuple[str, str]] = set()

    def check(self, values: Sequence[Value], defaults: Mapping[str, Any]) -> None:
        """Raise `InvalidInput` for texts that the policy forbids. Defaults and choices are allowed, because they are
        the owner's."""
        errors = {
            value.property.key: REFUSED_TEXT
            for value in values
            if value.from_user and value.property.type is PropertyType.TEXT
            if value.value != defaults.get(value.property.key)
            if not self._is_allowed(value.property.placeholder, value.value)
        }
        if errors:
            raise InvalidInput(errors=errors)

    def _is_allowed(self, placeholder: str, text: str) -> bool:
        # Items of a batch share most of their texts.
        if (placeholder, text) in self._allowed:
            return True
        if placeholder not in self._inputs_of:
            self._inputs_of[placeholder] = self._reached_inputs(placeholder)
        try:
            self._policy.check(replace_placeholders(self._inputs_of[placeholder], {placeholder: text}), own=self._files)
        except GraphNotAllowed:
            return False
        self._allowed.add((placeholder, text))
        return True

    def _reached_inputs(self, placeholder: str) -> Graph:
        """Return the inputs that receive a placeholder's text, directly or through nodes that only combine texts."""
        wanted = placeholders_of([placeholder])
        pending = [(id_, name) for id_, name, value in _inputs(self._graph) if wanted.found_in(texts_in(value))]
        reached: Graph = {}
        combining: set[str] = set()
        while pending:
            id_, name = pending.pop()
            node = self._graph[id_]
            # The policy reads only classes and inputs.
            part = reached.setdefault(id_, {"class_type": node["class_type"], "inputs": {}})
            part["inputs"][name] = node["inputs"][name]
            if id_ not in combining and _only_links_to(combining, node["inputs"]):
                combining.add(id_)
                pending.extend(self._links[id_])
        return reached


def _inputs(graph: Graph) -> Iterator[tuple[str, str, Any]]:
    for id_, node in graph.items():
        for name, value in node["inputs"].items():
            yield id_, name, value


def _only_links_to(ids: Collection[str], inputs: Mapping[str, Any]) -> bool:
    return all(value[0] in ids for value in inputs.values() if is_link(value))
