"""What a graph needs against what a worker says it has: which nodes and models are missing."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

# A worker that lacks everything would fill a page with names.
MOST_NAMES_IN_TEXT = 5


class Fit(StrEnum):
    ABLE = "able"
    LACKING = "lacking"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class Needs:
    """The node classes of a graph, and the model files that it names."""

    node_types: frozenset[str]
    models: frozenset[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitness:
    fit: Fit
    text: str
    missing_node_types: Sequence[str] = ()
    missing_models: Sequence[str] = ()


def fitness(needs: Needs, capabilities: Mapping[str, Any]) -> Fitness:
    """Compare a graph with a worker's report. What a worker does not report is unknown, not missing."""
    node_types = _names(capabilities.get("node_types"))
    models = _model_names(capabilities.get("models"))
    no_nodes = [] if node_types is None else sorted(needs.node_types - node_types)
    no_models = [] if models is None else sorted(each for each in needs.models if _plain(each) not in models)
    if no_nodes or no_models:
        parts = [_listed("node", no_nodes), _listed("model", no_models)]
        text = f"It lacks {' and '.join(part for part in parts if part)}."
        return Fitness(fit=Fit.LACKING, text=text, missing_node_types=no_nodes, missing_models=no_models)
    silent = [
        *(["nodes"] if node_types is None else []),
        *(["models"] if models is None and needs.models else []),
    ]
    if silent:
        return Fitness(fit=Fit.UNKNOWN, text=f"It does not say which {' and '.join(silent)} it has.")
    return Fitness(fit=Fit.ABLE, text="It has everything that the workflow needs.")


def _model_names(reported: object) -> set[str] | None:
    """Models come as names by folder, or as one list. A graph does not say which folder a name is looked for in."""
    if isinstance(reported, Mapping):
        lists = [found for each in reported.values() if (found := _names(each)) is not None]
        return {_plain(name) for found in lists for name in found}
    found = _names(reported)
    return None if found is None else {_plain(name) for name in found}


def _names(reported: object) -> set[str] | None:
    if isinstance(reported, list | tuple):
        return {each for each in reported if isinstance(each, str)}
    return None


def _plain(name: str) -> str:
    # a worker on Windows reports sub\model.safetensors for what a graph from elsewhere calls sub/model.safetensors
    return name.replace("\\", "/")


def _listed(word: str, names: Sequence[str]) -> str:
    if not names:
        return ""
    shown: Iterable[str] = names[:MOST_NAMES_IN_TEXT]
    more = len(names) - MOST_NAMES_IN_TEXT
    rest = f" and {more} more" if more > 0 else ""
    return f"the {word}{'s' if len(names) > 1 else ''} {', '.join(shown)}{rest}"
