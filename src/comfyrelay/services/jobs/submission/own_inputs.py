"""Policy check of graph inputs whose values come from a job."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from comfyrelay.comfyui.graphs.graph import Graph, replace_placeholders, texts_in
from comfyrelay.comfyui.graphs.placeholders import placeholders_of
from comfyrelay.comfyui.graphs.policy import GraphPolicy

# Number of allowed value sets that are cached per batch. Other sets are checked each time.
MAX_REMEMBERED = 100_000


class OwnInputs:
    """Checks inputs with placeholders against the policy, for many sets of values. The caller checks other inputs."""

    def __init__(self, policy: GraphPolicy, graph: Graph, *, texts: Sequence[str], files: Collection[str]) -> None:
        self._policy = policy
        self._files = files
        # Inputs are grouped by their placeholders, because equal values need only one check.
        self._groups: dict[tuple[str, ...], Graph] = {}
        wanted = placeholders_of(texts)
        for id_, node in graph.items():
            for name, value in node["inputs"].items():
                if placeholders := wanted.found_in(texts_in(value)):
                    group = self._groups.setdefault(tuple(sorted(placeholders)), {})
                    # The policy reads only classes and inputs.
                    group.setdefault(id_, {"class_type": node["class_type"], "inputs": {}})["inputs"][name] = value
        self._passed: set[tuple[str, ...]] = set()

    def check(self, values: Mapping[str, Any]) -> None:
        """Raise `GraphNotAllowed` if the policy forbids these values."""
        for names, inputs in self._groups.items():
            # `repr` distinguishes 1 from "1".
            given = tuple(f"{name}={values[name]!r}" for name in names if name in values)
            if given in self._passed:
                continue
            self._policy.check(replace_placeholders(inputs, values), own=self._files)
            if len(self._passed) < MAX_REMEMBERED:
                self._passed.add(given)
