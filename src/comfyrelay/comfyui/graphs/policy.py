"""What a graph may do: which classes of nodes it may have, and which files it may name."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from typing import Any, Literal

from comfyrelay.comfyui.graphs.dangerous import danger_of
from comfyrelay.comfyui.graphs.foreign_files import MOST_PROBLEMS, foreign_files, node_place
from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.graphs.paths import path_problems
from comfyrelay.errors import GraphNotAllowed

Mode = Literal["deny", "allow", "off"]
_LONGEST_CLASS = 200
_ASK = "Remove the node, or ask the administrator to make an effect of the graph."


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphPolicy:
    """`deny`: no class that is known to be dangerous. `allow`: only classes of the list. `off`: everything.

    Where jobs of several people run (`is_shared`), files of other jobs are out of reach in every mode.
    `denied` and `allowed` are names of classes, in which `*` stands for anything. What is denied by name is denied in
    both modes; what is allowed by name is allowed although it is known to be dangerous.
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
        """Raise `GraphNotAllowed` when a graph may not run. `own` are the placeholders of the job's files.

        Of an effect, whose nodes an administrator has chosen, only the files are looked at: texts of users are in it.
        Nodes that `object_info` does not know are judged by the names of their inputs.
        """
        if self.mode == "off" and not self.is_shared:
            return
        files, info = frozenset(filter(None, own)), object_info or {}
        found: Iterator[str] = iter(())
        if self.mode != "off" and not is_effect:
            found = chain(self._denied_nodes(graph), path_problems(graph, own=files, object_info=info))
        problems = list(islice(found, MOST_PROBLEMS)) or foreign_files(graph, own=files, object_info=info)
        if problems:
            raise GraphNotAllowed(" ".join(problems))

    def why_not(self, class_type: str) -> str | None:
        """Why a tenant's graph may not have this class; `None` when it may."""
        if self.mode == "off":
            return None
        if len(class_type) > _LONGEST_CLASS:
            return "no class has so long a name"
        if _matches(self.denied, class_type):
            return "the administrator has denied it"
        if _matches(self.allowed, class_type):
            return None
        if self.mode == "allow":
            return "it is not on the administrator's list"
        return danger_of(class_type)

    def _denied_nodes(self, graph: Graph) -> Iterator[str]:
        known: dict[str, str | None] = {}
        for node_id, node in graph.items():
            class_type = node["class_type"]
            if class_type not in known:
                known[class_type] = self.why_not(class_type)
            if (why := known[class_type]) is not None:
                yield f"{node_place(class_type, node_id)} may not be in a graph of yours: {why}. {_ASK}"


def _matches(patterns: Sequence[str], class_type: str) -> bool:
    names, wildcards = _compiled(tuple(patterns))
    return class_type in names or (wildcards is not None and wildcards.fullmatch(class_type) is not None)


@lru_cache(maxsize=16)
def _compiled(patterns: tuple[str, ...]) -> tuple[frozenset[str], re.Pattern[str] | None]:
    # the list of a whole fleet is long, and nearly all of it are plain names; brackets are letters, for names have them
    wildcards = [".*?".join(map(re.escape, each.split("*"))) for each in patterns if "*" in each]
    names = frozenset(each for each in patterns if "*" not in each)
    return names, re.compile("|".join(wildcards), re.DOTALL) if wildcards else None
