"""What a graph needs against what workers say they have: which nodes and models are missing, and who has them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

# A worker that lacks everything would fill a page with names.
MOST_NAMES_IN_TEXT = 5
# Whoever is refused has to install all of it.
MOST_NAMES_IN_REFUSAL = 50
# So many of a kind are written down for each worker and graph: who brings thousands of names is told of some.
MOST_NAMES_KEPT = 100


class Fit(StrEnum):
    ABLE = "able"
    LACKING = "lacking"
    UNKNOWN = "unknown"


class NeedKind(StrEnum):
    NODE = "node"
    MODEL = "model"


@dataclass(frozen=True, kw_only=True, slots=True)
class Needs:
    """The node classes of a graph, and the model files that it names."""

    node_types: frozenset[str]
    models: frozenset[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitness:
    """`silent` are the kinds of which the worker says nothing, though the graph needs some."""

    fit: Fit
    text: str
    missing_node_types: Sequence[str] = ()
    missing_models: Sequence[str] = ()
    silent: Sequence[NeedKind] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Equipment:
    """A worker's report, read once to be held against many graphs: what its servers have between them, and of each
    server what it lacks of that. What is not reported is `None`."""

    node_types: frozenset[str] | None
    models: frozenset[str] | None
    servers: Sequence[tuple[frozenset[str], frozenset[str]]]

    @classmethod
    def of(cls, capabilities: Mapping[str, Any]) -> Self:
        servers = capabilities.get("comfyui")
        return cls(
            node_types=_names(capabilities.get("node_types")),
            models=_model_names(capabilities.get("models")),
            servers=[_lacks(each) for each in servers if isinstance(each, Mapping)]
            if isinstance(servers, list | tuple)
            else [],
        )

    def fitness(self, needs: Needs) -> Fitness:
        """That of the server that lacks least: a job is tried on each. What a worker does not report is unknown, not
        missing."""
        each = [self._missing(needs, *lacks) for lacks in self.servers or [(frozenset(), frozenset())]]
        no_nodes, no_models = min(each, key=lambda missing: len(missing[0]) + len(missing[1]))
        silent = [
            *([NeedKind.NODE] if self.node_types is None else []),
            *([NeedKind.MODEL] if self.models is None and needs.models else []),
        ]
        if no_nodes or no_models:
            text = f"It lacks {listed(no_nodes, no_models)}."
            return Fitness(
                fit=Fit.LACKING, text=text, missing_node_types=no_nodes, missing_models=no_models, silent=silent
            )
        if silent:
            kinds = " and ".join(f"{kind}s" for kind in silent)
            return Fitness(fit=Fit.UNKNOWN, text=f"It does not say which {kinds} it has.", silent=silent)
        return Fitness(fit=Fit.ABLE, text="It has everything that the workflow needs.")

    def _missing(
        self, needs: Needs, lacks_nodes: frozenset[str], lacks_models: frozenset[str]
    ) -> tuple[list[str], list[str]]:
        known_nodes, known_models = self.node_types, self.models
        no_nodes = [
            name
            for name in needs.node_types
            if known_nodes is not None and (name not in known_nodes or name in lacks_nodes)
        ]
        no_models = [
            name
            for name in needs.models
            if known_models is not None and (_plain(name) not in known_models or _plain(name) in lacks_models)
        ]
        return sorted(no_nodes), sorted(no_models)


def fitness(needs: Needs, capabilities: Mapping[str, Any]) -> Fitness:
    """Compare a graph with a worker's report."""
    return Equipment.of(capabilities).fitness(needs)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lacking:
    """What a worker that could be given a job lacks for it."""

    worker: str
    node_types: Sequence[str]
    models: Sequence[str]
    silent: Sequence[str] = ()
    # by kind, the last name that was written down where there were too many: of later ones nothing is known
    until: Mapping[NeedKind, str] = field(default_factory=dict)

    def has(self, kind: NeedKind, name: str) -> bool:
        missing = self.node_types if kind is NeedKind.NODE else self.models
        is_known = kind not in self.silent and name <= self.until.get(kind, name)
        return is_known and name not in missing


def known_until(names: Iterable[tuple[NeedKind, Sequence[str]]]) -> dict[NeedKind, str]:
    """For `Lacking.until`: of each list, in order, that has as many names as are written down, the last."""
    found: dict[NeedKind, str] = {}
    for kind, each in names:
        if len(each) >= MOST_NAMES_KEPT:
            found[kind] = min(each[MOST_NAMES_KEPT - 1], found.get(kind, each[MOST_NAMES_KEPT - 1]))
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Gap:
    """A node or a model that some worker lacks, and the workers that have it."""

    kind: NeedKind
    name: str
    workers: Sequence[str]


def gaps(lacking: Sequence[Lacking]) -> list[Gap]:
    """Everything that keeps these workers from a job; all of them lack something."""
    names = {
        NeedKind.NODE: sorted({name for lack in lacking for name in lack.node_types}),
        NeedKind.MODEL: sorted({name for lack in lacking for name in lack.models}),
    }
    return [
        Gap(kind=kind, name=name, workers=[lack.worker for lack in lacking if lack.has(kind, name)])
        for kind, found in names.items()
        for name in found
    ]


def refusal(found: Sequence[Gap], *, workers: int, shows_names: bool) -> str:
    """Why a job would not run, in a sentence for whoever submits it."""
    if workers == 1:
        nodes, models = _by_kind(found)
        return f"The worker lacks {listed(nodes, models, most=MOST_NAMES_IN_REFUSAL)}."
    shown = [f"the {gap.kind} {gap.name} ({_who_has(gap, shows_names=shows_names)})" for gap in found]
    more = len(shown) - MOST_NAMES_IN_REFUSAL
    rest = [f"and {_how_many(more, len(shown))}"] if more > 0 else []
    return f"None of the {workers} workers has everything: {', '.join([*shown[:MOST_NAMES_IN_REFUSAL], *rest])}."


def awaited(found: Sequence[Gap]) -> str:
    """What a job waits for."""
    return f"It waits until a worker has {listed(*_by_kind(found))}."


def _by_kind(found: Sequence[Gap]) -> tuple[list[str], list[str]]:
    nodes = [each.name for each in found if each.kind is NeedKind.NODE]
    return nodes, [each.name for each in found if each.kind is NeedKind.MODEL]


def _who_has(gap: Gap, *, shows_names: bool) -> str:
    if not gap.workers:
        return "no worker has it"
    if shows_names:
        return f"only {', '.join(gap.workers)}"
    return f"only {len(gap.workers)} {'worker has' if len(gap.workers) == 1 else 'workers have'} it"


def _lacks(server: Mapping[str, Any]) -> tuple[frozenset[str], frozenset[str]]:
    lacks = server.get("lacks")
    found = lacks if isinstance(lacks, Mapping) else {}
    models = _names(found.get("models")) or frozenset()
    return _names(found.get("node_types")) or frozenset(), frozenset(map(_plain, models))


def _model_names(reported: object) -> frozenset[str] | None:
    """Models come as names by folder, or as one list. A graph does not say which folder a name is looked for in."""
    if isinstance(reported, Mapping):
        lists = [found for each in reported.values() if (found := _names(each)) is not None]
        return frozenset(_plain(name) for found in lists for name in found)
    found = _names(reported)
    return None if found is None else frozenset(map(_plain, found))


def _names(reported: object) -> frozenset[str] | None:
    if not isinstance(reported, list | tuple):
        return None
    # there may be thousands for each of hundreds of workers, and nearly always all of them are texts
    if set(map(type, reported)) <= {str}:
        return frozenset(reported)
    return frozenset(each for each in reported if isinstance(each, str))


def _plain(name: str) -> str:
    # a worker on Windows reports sub\model.safetensors for what a graph from elsewhere calls sub/model.safetensors
    return name.replace("\\", "/")


def listed(node_types: Sequence[str], models: Sequence[str], *, most: int = MOST_NAMES_IN_TEXT) -> str:
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
    return "more" if all_ >= MOST_NAMES_KEPT else f"{more} more"
