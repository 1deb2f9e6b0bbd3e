"""Compare the nodes and models that a graph requires with the reports of workers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

# A worker without any requirement would fill a page with names.
MAX_NAMES_IN_TEXT = 5
# A refusal lists more, because the user has to install all of them.
MAX_NAMES_IN_REFUSAL = 50
# Missing names stored per kind, worker and graph.
MAX_NAMES_KEPT = 100


class Fit(StrEnum):
    ABLE = "able"
    UNABLE = "unable"
    UNKNOWN = "unknown"


class RequirementKind(StrEnum):
    NODE = "node"
    MODEL = "model"


@dataclass(frozen=True, kw_only=True, slots=True)
class Requirements:
    """Node classes and model files that a graph uses."""

    node_types: frozenset[str]
    models: frozenset[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitness:
    """Whether a worker can run a graph. `silent` are the required kinds that the worker does not report."""

    fit: Fit
    text: str
    missing_node_types: Sequence[str] = ()
    missing_models: Sequence[str] = ()
    silent: Sequence[RequirementKind] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportedCapabilities:
    """A worker's report, parsed once to compare it with many graphs.

    `node_types` and `models` are the union over its servers; `None` if not reported.
    """

    node_types: frozenset[str] | None
    models: frozenset[str] | None
    # nodes and models of the union that each server is missing
    servers: Sequence[tuple[frozenset[str], frozenset[str]]]

    @classmethod
    def from_report(cls, capabilities: Mapping[str, Any]) -> Self:
        servers = capabilities.get("comfyui")
        return cls(
            node_types=_names(capabilities.get("node_types")),
            models=_model_names(capabilities.get("models")),
            servers=[_missing_on(server) for server in servers if isinstance(server, Mapping)]
            if isinstance(servers, list | tuple)
            else [],
        )

    def fitness(self, needs: Requirements) -> Fitness:
        """Check the server with the fewest missing requirements, because a job is tried on each.

        A kind that the worker does not report is unknown, not missing.
        """
        found = [self._missing(needs, *server) for server in self.servers or [(frozenset(), frozenset())]]
        no_nodes, no_models = min(found, key=lambda missing: len(missing[0]) + len(missing[1]))
        silent = [
            *([RequirementKind.NODE] if self.node_types is None else []),
            *([RequirementKind.MODEL] if self.models is None and needs.models else []),
        ]
        if no_nodes or no_models:
            text = f"The worker is missing {name_requirements(no_nodes, no_models)}."
            return Fitness(
                fit=Fit.UNABLE, text=text, missing_node_types=no_nodes, missing_models=no_models, silent=silent
            )
        if silent:
            kinds = " and ".join(f"{kind}s" for kind in silent)
            return Fitness(fit=Fit.UNKNOWN, text=f"The worker does not report its {kinds}.", silent=silent)
        return Fitness(fit=Fit.ABLE, text="The worker has everything the workflow needs.")

    def _missing(
        self, needs: Requirements, server_nodes: frozenset[str], server_models: frozenset[str]
    ) -> tuple[list[str], list[str]]:
        known_nodes, known_models = self.node_types, self.models
        no_nodes = [
            name
            for name in needs.node_types
            if known_nodes is not None and (name not in known_nodes or name in server_nodes)
        ]
        no_models = [
            name
            for name in needs.models
            if known_models is not None and (_plain(name) not in known_models or _plain(name) in server_models)
        ]
        return sorted(no_nodes), sorted(no_models)


def fitness(needs: Requirements, capabilities: Mapping[str, Any]) -> Fitness:
    return ReportedCapabilities.from_report(capabilities).fitness(needs)


@dataclass(frozen=True, kw_only=True, slots=True)
class UnmetRequirements:
    """The requirements of a job that one worker does not meet."""

    worker: str
    node_types: Sequence[str]
    models: Sequence[str]
    silent: Sequence[str] = ()
    # by kind, the last stored name of a truncated list; later names are unknown
    until: Mapping[RequirementKind, str] = field(default_factory=dict)

    def has(self, kind: RequirementKind, name: str) -> bool:
        missing = self.node_types if kind is RequirementKind.NODE else self.models
        is_known = kind not in self.silent and name <= self.until.get(kind, name)
        return is_known and name not in missing


def known_until(names: Iterable[tuple[RequirementKind, Sequence[str]]]) -> dict[RequirementKind, str]:
    """Compute `UnmetRequirements.until` from sorted lists: the last stored name of each truncated one."""
    found: dict[RequirementKind, str] = {}
    for kind, sorted_names in names:
        if len(sorted_names) >= MAX_NAMES_KEPT:
            last = sorted_names[MAX_NAMES_KEPT - 1]
            found[kind] = min(last, found.get(kind, last))
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class MissingRequirement:
    """A node or model that some workers are missing, and the workers that have it."""

    kind: RequirementKind
    name: str
    workers: Sequence[str]


def merge_unmet(unmet: Sequence[UnmetRequirements]) -> list[MissingRequirement]:
    """Merge the unmet requirements of several workers."""
    names = {
        RequirementKind.NODE: sorted({name for each in unmet for name in each.node_types}),
        RequirementKind.MODEL: sorted({name for each in unmet for name in each.models}),
    }
    return [
        MissingRequirement(kind=kind, name=name, workers=[each.worker for each in unmet if each.has(kind, name)])
        for kind, found in names.items()
        for name in found
    ]


def refusal_text(found: Sequence[MissingRequirement], *, workers: int, shows_names: bool) -> str:
    """Tell the user why no worker could run the job."""
    if workers == 1:
        nodes, models = _by_kind(found)
        return f"The worker is missing {name_requirements(nodes, models, most=MAX_NAMES_IN_REFUSAL)}."
    shown = [f"the {gap.kind} {gap.name} ({_who_has(gap, shows_names=shows_names)})" for gap in found]
    more = len(shown) - MAX_NAMES_IN_REFUSAL
    rest = [f"and {_how_many(more, len(shown))}"] if more > 0 else []
    return f"None of the {workers} workers meets all requirements: {', '.join([*shown[:MAX_NAMES_IN_REFUSAL], *rest])}."


def wait_text(found: Sequence[MissingRequirement]) -> str:
    return f"Waiting for a worker with {name_requirements(*_by_kind(found))}."


def _by_kind(found: Sequence[MissingRequirement]) -> tuple[list[str], list[str]]:
    nodes = [each.name for each in found if each.kind is RequirementKind.NODE]
    return nodes, [each.name for each in found if each.kind is RequirementKind.MODEL]


def _who_has(gap: MissingRequirement, *, shows_names: bool) -> str:
    if not gap.workers:
        return "on no worker"
    if shows_names:
        return f"only on {', '.join(gap.workers)}"
    return f"only on {len(gap.workers)} worker{'' if len(gap.workers) == 1 else 's'}"


def _missing_on(server: Mapping[str, Any]) -> tuple[frozenset[str], frozenset[str]]:
    lacks = server.get("lacks")
    found = lacks if isinstance(lacks, Mapping) else {}
    models = _names(found.get("models")) or frozenset()
    return _names(found.get("node_types")) or frozenset(), frozenset(map(_plain, models))


def _model_names(reported: object) -> frozenset[str] | None:
    """Models are reported by folder or as one list. Folders are ignored, because graphs do not name them."""
    if isinstance(reported, Mapping):
        lists = [found for each in reported.values() if (found := _names(each)) is not None]
        return frozenset(_plain(name) for found in lists for name in found)
    found = _names(reported)
    return None if found is None else frozenset(map(_plain, found))


def _names(reported: object) -> frozenset[str] | None:
    if not isinstance(reported, list | tuple):
        return None
    # fast path for thousands of names from hundreds of workers, which are nearly always all strings
    if set(map(type, reported)) <= {str}:
        return frozenset(reported)
    return frozenset(each for each in reported if isinstance(each, str))


def _plain(name: str) -> str:
    # a worker on Windows reports sub\model.safetensors where a graph from Linux names sub/model.safetensors
    return name.replace("\\", "/")


def name_requirements(node_types: Sequence[str], models: Sequence[str], *, most: int = MAX_NAMES_IN_TEXT) -> str:
    parts = [_some("node", node_types, most), _some("model", models, most)]
    return " and ".join(part for part in parts if part)


def _some(word: str, names: Sequence[str], most: int) -> str:
    if not names:
        return ""
    shown: Iterable[str] = names[:most]
    more = len(names) - most
    rest = f" and {_how_many(more, len(names))}" if more > 0 else ""
    return f"the {word}{'s' if len(names) > 1 else ''} {', '.join(shown)}{rest}"


def _how_many(more: int, all_: int) -> str:
    return "more" if all_ >= MAX_NAMES_KEPT else f"{more} more"
