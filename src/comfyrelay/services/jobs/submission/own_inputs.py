"""The inputs of a tenant's own graph that hold values of a job: what they name is known only with those."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from comfyrelay.comfyui.graphs.graph import Graph, placeholders_in, replace_placeholders
from comfyrelay.comfyui.graphs.policy import GraphPolicy

# Sets of values that one batch has passed the policy with; more are checked again.
MOST_REMEMBERED = 100_000


class OwnInputs:
    """Holds them to the policy, for many sets of values. The rest of the graph is another's matter."""

    def __init__(self, policy: GraphPolicy, graph: Graph, *, texts: Sequence[str], files: Collection[str]) -> None:
        self._policy = policy
        self._files = files
        # by the placeholders that they hold: with the same values for those they need no second look
        self._groups: dict[tuple[str, ...], Graph] = {}
        for id_, node in graph.items():
            for name, value in node["inputs"].items():
                held = placeholders_in({id_: {"inputs": {name: value}}}, texts)
                if held:
                    group = self._groups.setdefault(tuple(sorted(held)), {})
                    # titles and the like are nothing to the policy
                    group.setdefault(id_, {"class_type": node["class_type"], "inputs": {}})["inputs"][name] = value
        self._passed: set[tuple[str, ...]] = set()

    def check(self, values: Mapping[str, Any]) -> None:
        """Raise `GraphNotAllowed` when the graph may not run with these values."""
        for names, inputs in self._groups.items():
            # a number is another value than the same digits as a text
            given = tuple(f"{name}={values[name]!r}" for name in names if name in values)
            if given in self._passed:
                continue
            self._policy.check(replace_placeholders(inputs, values), own=self._files)
            if len(self._passed) < MOST_REMEMBERED:
                self._passed.add(given)
