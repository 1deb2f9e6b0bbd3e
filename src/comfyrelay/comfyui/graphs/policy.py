"""Policy for tenants' graphs: allowed node classes and files."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from typing import Any, Literal

from comfyrelay.comfyui.graphs.dangerous import danger_of
from comfyrelay.comfyui.graphs.foreign_files import MAX_PROBLEMS, foreign_files, node_place
from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.graphs.paths import path_problems
from comfyrelay.errors import GraphNotAllowed

Mode = Literal["deny", "allow", "off"]
_LONGEST_CLASS = 200
# Key in the definition of a class that the server replaces, with the name of the class that runs instead.
REPLACED_BY = "replaced_by"
_ASK_ADMINISTRATOR = "Remove the node, or ask an administrator to create an effect from the graph."


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphPolicy:
    """The nodes and files that tenants' graphs may use.

    The mode `deny` allows all classes except known dangerous ones, `allow` only listed classes, and `off` all classes.

    If several users share a machine (`is_shared`), files of other jobs are forbidden in every mode. `denied` and
    `allowed` are class names with `*` as a wildcard. A denied name is denied in both modes; an allowed name is allowed
    even if it is known to be dangerous.
    """

    mode: Mode = "deny"
    denied: Sequence[str] = ()
    allowed: Sequence[str] = ()
    is_shared: bool = False

    def check(
        self,
        graph: Graph,
        *,
        own: Collection[str],
        object_info: Mapping[str, Any] | None = None,
        is_effect: bool = False,
    ) -> None:
        """Raise `GraphNotAllowed` if a graph may not run. `own` are the placeholders of the job's files.

        An administrator chose the nodes of an effect, so only its files are checked: it contains users' texts. Nodes
        missing in `object_info` are judged by the names of their inputs.
        """
        if self.mode == "off" and not self.is_shared:
            return
        files, info = frozenset(filter(None, own)), object_info or {}
        found: Iterator[str] = iter(())
        if self.mode != "off" and not is_effect:
            found = chain(self._denied_nodes(graph, info), path_problems(graph, own=files, object_info=info))
        problems = list(islice(found, MAX_PROBLEMS)) or foreign_files(graph, own=files, object_info=info)
        if problems:
            raise GraphNotAllowed(" ".join(problems))

    def why_not(self, class_type: str) -> str | None:
        """Return why a tenant's graph may not contain this class, or `None` if it is allowed."""
        if self.mode == "off":
            return None
        if len(class_type) > _LONGEST_CLASS:
            return "its name is too long"
        if _matches(self.denied, class_type):
            return "an administrator has denied it"
        if _matches(self.allowed, class_type):
            return None
        if self.mode == "allow":
            return "it is not on the administrator's list"
        return danger_of(class_type)

    def _denied_nodes(self, graph: Graph, info: Mapping[str, Any]) -> Iterator[str]:
        known: dict[str, str | None] = {}
        for node_id, node in graph.items():
            class_type = node["class_type"]
            if class_type not in known:
                runs = _replacement_of(info.get(class_type))
                known[class_type] = self.why_not(class_type) or (self.why_not(runs) if runs is not None else None)
            if (why := known[class_type]) is not None:
                yield f"{node_place(class_type, node_id)} is not allowed in your graphs: {why}. {_ASK_ADMINISTRATOR}"


def _replacement_of(definition: object) -> str | None:
    """Return the class that the server runs instead of this one."""
    found = definition.get(REPLACED_BY) if isinstance(definition, dict) else None
    return found if isinstance(found, str) else None


def _matches(patterns: Sequence[str], class_type: str) -> bool:
    names, wildcards = _compiled(tuple(patterns))
    return class_type in names or (wildcards is not None and wildcards.fullmatch(class_type) is not None)


@lru_cache(maxsize=16)
def _compiled(patterns: tuple[str, ...]) -> tuple[frozenset[str], re.Pattern[str] | None]:
    # A fleet's list is long, and nearly all names are without wildcards. Brackets are literal, because class names
    # contain them.
    wildcards = [".*?".join(map(re.escape, pattern.split("*"))) for pattern in patterns if "*" in pattern]
    names = frozenset(pattern for pattern in patterns if "*" not in pattern)
    return names, re.compile("|".join(wildcards), re.DOTALL) if wildcards else None
