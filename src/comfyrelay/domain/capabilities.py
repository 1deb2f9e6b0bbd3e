"""Compare the nodes and models that a graph requires with the reports of workers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Any, Self

# A limit is needed, because the missing names of a worker without any nodes or models would fill a page.
MAX_NAMES_IN_TEXT = 5
# Refusals list more names, because the user has to install all of them.
MAX_NAMES_IN_REFUSAL = 50
# Missing names stored per kind, worker and graph.
MAX_NAMES_STORED = 100


# Limits for showing a report on pages: entries per list, nested levels, characters per text, and values in total.
MAX_SHOWN = 100
MAX_SHOWN_LEVELS = 8
MAX_SHOWN_LENGTH = 200
MAX_SHOWN_VALUES = 1000


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
    """Whether a worker can run a graph. `unreported` has the required kinds that the worker does not report."""

    fit: Fit
    text: str
    missing_node_types: Sequence[str] = ()
    missing_models: Sequence[str] = ()
    unreported: Sequence[RequirementKind] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportedCapabilities:
    """A worker's report, parsed once to compare it with many graphs.

    `node_types` and `models` are the union over its servers; `None` if not reported.
    """

    node_types: frozenset[str] | None
    models: frozenset[str] | None
    # Nodes and models of the union that each server is missing.
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
        """Check the server with the fewest missing requirements, because a job is tried on every server.

        A kind that the worker does not report is unknown, not missing.
        """
        by_server = [self._missing(needs, *server) for server in self.servers or [(frozenset(), frozenset())]]
        nodes, models = min(by_server, key=lambda missing: len(missing[0]) + len(missing[1]))
        unreported = [
            *([RequirementKind.NODE] if self.node_types is None else []),
            *([RequirementKind.MODEL] if self.models is None and needs.models else []),
        ]
        if nodes or models:
            text = f"The worker is missing {name_requirements(nodes, models)}."
            return Fitness(
                fit=Fit.UNABLE, text=text, missing_node_types=nodes, missing_models=models, unreported=unreported
            )
        if unreported:
            kinds = " and ".join(f"{kind}s" for kind in unreported)
            return Fitness(fit=Fit.UNKNOWN, text=f"The worker does not report its {kinds}.", unreported=unreported)
        return Fitness(fit=Fit.ABLE, text="The worker has everything the workflow needs.")

    def _missing(
        self, needs: Requirements, server_nodes: frozenset[str], server_models: frozenset[str]
    ) -> tuple[list[str], list[str]]:
        """Return the required nodes and models that are missing on one server.

        `server_nodes` and `server_models` are the ones of the worker that this server is missing.
        """
        nodes: list[str] = []
        models: list[str] = []
        if (known := self.node_types) is not None:
            nodes = [name for name in needs.node_types if name not in known or name in server_nodes]
        if (known := self.models) is not None:
            plain = {name: _normalize(name) for name in needs.models}
            models = [name for name, path in plain.items() if path not in known or path in server_models]
        return sorted(nodes), sorted(models)


def fitness(needs: Requirements, capabilities: Mapping[str, Any]) -> Fitness:
    return ReportedCapabilities.from_report(capabilities).fitness(needs)


@dataclass(frozen=True, kw_only=True, slots=True)
class CapabilitySummary:
    """The part of a report that pages show. Its size is limited, because a report may have megabytes.

    `node_count` and `model_count` are `None` if not reported. `capabilities` is the beginning of the report, with GPUs
    first and without the nodes and models that single servers are missing.
    """

    node_count: int | None = None
    model_count: int | None = None
    capabilities: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_report(cls, capabilities: Mapping[str, Any]) -> Self:
        servers = capabilities.get("comfyui")
        first = {"comfyui": _without_missing(servers)} if isinstance(servers, list | tuple) else {}
        return cls(
            node_count=_count(capabilities.get("node_types")),
            model_count=_count(capabilities.get("models")),
            capabilities=_Shortener().shorten({**first, **{k: v for k, v in capabilities.items() if k not in first}}),
        )


class _Shortener:
    """Copies the beginning of a value."""

    def __init__(self) -> None:
        self._left = MAX_SHOWN_VALUES

    def shorten(self, value: Any, levels: int = MAX_SHOWN_LEVELS) -> Any:
        self._left -= 1
        if not levels or self._left < 0:
            return "…"
        if isinstance(value, Mapping):
            entries = islice(value.items(), MAX_SHOWN)
            return {str(key)[:MAX_SHOWN_LENGTH]: self.shorten(inner, levels - 1) for key, inner in entries}
        if isinstance(value, list | tuple):
            return [self.shorten(inner, levels - 1) for inner in value[:MAX_SHOWN]]
        return value[:MAX_SHOWN_LENGTH] if isinstance(value, str) else value


@dataclass(frozen=True, kw_only=True, slots=True)
class UnmetRequirements:
    """The requirements of a job that one worker does not meet."""

    worker: str
    node_types: Sequence[str]
    models: Sequence[str]
    unreported: Sequence[str] = ()
    # By kind, the last stored name of a truncated list. Later names are unknown.
    until: Mapping[RequirementKind, str] = field(default_factory=dict)

    def has(self, kind: RequirementKind, name: str) -> bool:
        missing = self.node_types if kind is RequirementKind.NODE else self.models
        is_known = kind not in self.unreported and name <= self.until.get(kind, name)
        return is_known and name not in missing


def known_until(names: Iterable[tuple[RequirementKind, Sequence[str]]]) -> dict[RequirementKind, str]:
    """Return `UnmetRequirements.until` for sorted lists: the last stored name of each truncated one."""
    until: dict[RequirementKind, str] = {}
    for kind, sorted_names in names:
        if len(sorted_names) >= MAX_NAMES_STORED:
            last = sorted_names[MAX_NAMES_STORED - 1]
            until[kind] = min(last, until.get(kind, last))
    return until


@dataclass(frozen=True, kw_only=True, slots=True)
class MissingRequirement:
    """A node or model that some workers are missing, and the workers that have it."""

    kind: RequirementKind
    name: str
    workers: Sequence[str]


def merge_unmet(unmet: Sequence[UnmetRequirements]) -> list[MissingRequirement]:
    """Merge the unmet requirements of several workers."""
    names = {
        RequirementKind.NODE: sorted({name for worker in unmet for name in worker.node_types}),
        RequirementKind.MODEL: sorted({name for worker in unmet for name in worker.models}),
    }
    return [
        MissingRequirement(kind=kind, name=name, workers=[worker.worker for worker in unmet if worker.has(kind, name)])
        for kind, missing in names.items()
        for name in missing
    ]


def refusal_text(missing: Sequence[MissingRequirement], *, workers: int, shows_names: bool) -> str:
    """Explain why no worker can run the job."""
    if workers == 1:
        nodes, models = _by_kind(missing)
        return f"The worker is missing {name_requirements(nodes, models, limit=MAX_NAMES_IN_REFUSAL)}."
    shown = [f"the {gap.kind} {gap.name} ({_who_has(gap, shows_names=shows_names)})" for gap in missing]
    more = len(shown) - MAX_NAMES_IN_REFUSAL
    rest = [f"and {_more(more, len(shown))}"] if more > 0 else []
    return f"None of the {workers} workers meets all requirements: {', '.join([*shown[:MAX_NAMES_IN_REFUSAL], *rest])}."


def wait_text(missing: Sequence[MissingRequirement]) -> str:
    return f"Waiting for a worker with {name_requirements(*_by_kind(missing))}."


def _by_kind(missing: Sequence[MissingRequirement]) -> tuple[list[str], list[str]]:
    nodes = [gap.name for gap in missing if gap.kind is RequirementKind.NODE]
    return nodes, [gap.name for gap in missing if gap.kind is RequirementKind.MODEL]


def _who_has(gap: MissingRequirement, *, shows_names: bool) -> str:
    if not gap.workers:
        return "on no worker"
    if shows_names:
        return f"only on {', '.join(gap.workers)}"
    return f"only on {len(gap.workers)} worker{'' if len(gap.workers) == 1 else 's'}"


def _count(reported: object) -> int | None:
    """Return the number of names in a list, or in lists by folder; `None` if there is neither."""
    if isinstance(reported, Mapping):
        return sum(_count(names) or 0 for names in reported.values())
    return len(reported) if isinstance(reported, list | tuple) else None


def _without_missing(servers: Sequence[Any]) -> list[Any]:
    return [
        {name: value for name, value in server.items() if name != "missing"} if isinstance(server, Mapping) else server
        for server in servers
    ]


def _missing_on(server: Mapping[str, Any]) -> tuple[frozenset[str], frozenset[str]]:
    reported = server.get("missing")
    missing = reported if isinstance(reported, Mapping) else {}
    models = _names(missing.get("models")) or frozenset()
    return _names(missing.get("node_types")) or frozenset(), frozenset(map(_normalize, models))


def _model_names(reported: object) -> frozenset[str] | None:
    """Read models, which are reported by folder or as one list. Ignore folders, because graphs do not name them."""
    if isinstance(reported, Mapping):
        folders = [names for folder in reported.values() if (names := _names(folder)) is not None]
        return frozenset(_normalize(name) for names in folders for name in names)
    names = _names(reported)
    return None if names is None else frozenset(map(_normalize, names))


def _names(reported: object) -> frozenset[str] | None:
    if not isinstance(reported, list | tuple):
        return None
    # Fast path for thousands of names from hundreds of workers: nearly always, all of them are strings.
    if set(map(type, reported)) <= {str}:
        return frozenset(reported)
    return frozenset(name for name in reported if isinstance(name, str))


def _normalize(name: str) -> str:
    # A worker on Windows reports sub\model.safetensors where a graph from Linux names sub/model.safetensors.
    return name.replace("\\", "/")


def name_requirements(node_types: Sequence[str], models: Sequence[str], *, limit: int = MAX_NAMES_IN_TEXT) -> str:
    """List nodes and models in one phrase."""
    parts = []
    for word, names in (("node", node_types), ("model", models)):
        more = len(names) - limit
        rest = f" and {_more(more, len(names))}" if more > 0 else ""
        if names:
            parts.append(f"the {word}{'s' if len(names) > 1 else ''} {', '.join(names[:limit])}{rest}")
    return " and ".join(parts)


def _more(more: int, total: int) -> str:
    """Describe how many names are not listed. At the limit of stored names, the number is unknown."""
    return "more" if total >= MAX_NAMES_STORED else f"{more} more"
