"""Convert an editor workflow into a graph, as the editor does when a workflow is submitted.

Subgraphs are flattened, reroutes and bypassed nodes are skipped, muted nodes are removed, and field values get names.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any

from comfyrelay.comfyui.editor import editor_only_nodes
from comfyrelay.comfyui.editor.broadcasts import connect_broadcasts, is_broadcaster
from comfyrelay.comfyui.editor.file_texts import name_nodes_by_id
from comfyrelay.comfyui.editor.packages import package_of
from comfyrelay.comfyui.editor.sources import DEEPEST_SUBGRAPH, NodeOutput, Scope, Sources
from comfyrelay.comfyui.editor.widgets import (
    StoredValue,
    as_input,
    count_marks,
    inputs_made_in_browser,
    names_with_choices,
)
from comfyrelay.comfyui.editor.workflow import EditorWorkflow, Node, read_workflow
from comfyrelay.comfyui.graphs.cycles import cycle_error, find_cycles
from comfyrelay.comfyui.graphs.dynamic_prompts import DYNAMIC_PROMPTS
from comfyrelay.comfyui.graphs.explain import GraphProblem, failure_of, missing_node_text
from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.graphs.model_sources import MODELS, not_installed, read_models
from comfyrelay.comfyui.graphs.preflight import installed_models
from comfyrelay.errors import ComfyError, GraphError, GraphRefused, NotInstalled

# A larger file is not a real workflow, but an attempt to exhaust memory.
MAX_NODES = 20_000
_MAX_INPUTS = 50 * MAX_NODES
# Number of special characters to parse in prompts with choices and comments.
MAX_MARKS = 300_000
# Longest name in a message, because thousands of uses of a subgraph may repeat a name.
_LONGEST_NAME = 80
# Number of missing classes to list; no real workflow has more.
_MAX_CLASSES = 200
# Number of nodes to list for one missing class.
MAX_NAMED = 3


def convert_workflow(
    value: Mapping[str, Any],
    node_definitions: Mapping[str, Any],
    *,
    known_packages: Mapping[str, str] = MappingProxyType({}),
) -> Graph:
    """Convert an editor workflow, given a server's node definitions (`/object_info`).

    All problems are reported at once: as `GraphRefused`, or as `NotInstalled` if only nodes are missing.
    `known_packages` maps missing classes to packages, for files that do not name them.
    """
    workflow = open_workflow(value, node_definitions)
    sources = Sources(workflow, node_definitions)
    graph: Graph = {}
    problems: list[GraphProblem] = []
    missing: dict[str, list[str]] = {}
    packages: dict[str, str] = {}
    models: list[dict[str, str]] = []
    root = Scope(workflow.root)
    for scope, node in running_nodes(root, sources):
        package = package_of(node) or known_packages.get(node.type)
        models += read_models(node.properties)
        found = list(_problems(sources, scope, node, package))
        problems += found
        if any(problem.kind is NotInstalled for problem in found):
            missing.setdefault(node.type, []).append(scope.id_of(node))
            if package is not None:
                packages.setdefault(node.type, package)
        if not found:
            graph[scope.id_of(node)] = _entry(sources, scope, node)
    if problems:
        failure = failure_of(problems)
        if isinstance(failure, NotInstalled):
            raise NotInstalled(
                _missing_text(missing, packages) + _missing_models_text(models, node_definitions),
                node_types=list(missing),
                packages=packages,
                node_id=failure.node_id,
                problems=failure.problems,
            )
        raise failure
    if not graph:
        raise GraphError("The workflow has no node that runs: all of them are muted, bypassed or notes.")
    for entry in graph.values():
        # Remove inputs whose values would come from muted nodes.
        entry["inputs"] = {
            name: value for name, value in entry["inputs"].items() if not isinstance(value, list) or value[0] in graph
        }
    name_nodes_by_id(graph, sources, root)
    if cycles := find_cycles(graph, graph):
        raise cycle_error(cycles[0])
    return graph


def open_workflow(value: Mapping[str, Any], node_definitions: Mapping[str, Any]) -> EditorWorkflow:
    """Read a file, and add the links that node packs create at submission."""
    return connect_broadcasts(read_workflow(value), node_definitions)


def _missing_text(missing: Mapping[str, list[str]], packages: Mapping[str, str]) -> str:
    """List each missing class once, with its nodes and the package to install."""
    named = [
        f"{name[:_LONGEST_NAME]} (node{'s' if len(ids) > 1 else ''} "
        f"{', '.join(node_id[:_LONGEST_NAME] for node_id in ids[:MAX_NAMED])}{', …' * (len(ids) > MAX_NAMED)}"
        f"{f'; package {packages[name]}' if name in packages else ''})"
        for name, ids in islice(missing.items(), _MAX_CLASSES)
    ]
    if len(missing) > len(named):
        named.append(f"and {len(missing) - len(named)} more")
    return f"{'These nodes are' if len(named) > 1 else 'This node is'} not installed: {', '.join(named)}."


def _missing_models_text(models: Sequence[Mapping[str, str]], node_definitions: Mapping[str, Any]) -> str:
    """List the models that the file names but the server does not have, so that all can be installed at once."""
    missing = not_installed(models, installed_models(node_definitions)) if models else {}
    named = [f"{name}{f' ({source})' if source else ''}" for name, source in islice(missing.items(), _MAX_CLASSES)]
    if not named:
        return ""
    return f" {'These models are' if len(named) > 1 else 'This model is'} not installed either: {', '.join(named)}."


def running_nodes(root: Scope, sources: Sources) -> Iterator[tuple[Scope, Node]]:
    """Yield the nodes that run. Raises `GraphError` if the workflow is too large."""
    pending, count, inputs, marks = [root], _within(len(root.sheet.nodes), root), 0, 0
    while pending:
        scope = pending.pop()
        for node in scope.sheet.nodes.values():
            if node.type in editor_only_nodes.VIRTUAL or node.is_off:
                continue
            if is_broadcaster(node) and sources.definition(node) is None:
                # This node is replaced by the links that it adds.
                continue
            if (inside := sources.inside(scope, node)) is not None:
                # Counted here, because many pending scopes would use memory before the first is checked.
                count = _within(count + len(inside.sheet.nodes), inside)
                pending.append(inside)
            # A subgraph with many values may have many uses.
            inputs += len(sources.inputs(node)) + len(node.values)
            if inputs > _MAX_INPUTS:
                raise GraphError(f"The workflow is too large: more than {_MAX_INPUTS:,} inputs and values.")
            marks += count_marks(node.values.values() if isinstance(node.values, dict) else node.values)
            if marks > MAX_MARKS:
                raise GraphError(f"The texts of the workflow have more than {MAX_MARKS:,} brackets and slashes.")
            if inside is None:
                yield scope, node


def _within(count: int, scope: Scope) -> int:
    if count > MAX_NODES or len(scope.path) > DEEPEST_SUBGRAPH:
        raise GraphError(
            f"The workflow is too large: more than {MAX_NODES:,} nodes, or more than "
            f"{DEEPEST_SUBGRAPH} levels of nested subgraphs."
        )
    return count


def inputs_of(sources: Sources, scope: Scope, node: Node) -> dict[str, NodeOutput | StoredValue]:
    """Return the source of each input of a node."""
    inputs: dict[str, NodeOutput | StoredValue] = dict(sources.fields(scope, node))
    for slot in sources.inputs(node):
        if (source := sources.source(scope, node, slot)) is not None:
            inputs[slot.name] = source
    return inputs


def _entry(sources: Sources, scope: Scope, node: Node) -> dict[str, Any]:
    found = inputs_of(sources, scope, node)
    inputs = {
        name: [source.node_id, source.slot] if isinstance(source, NodeOutput) else as_input(source.value)
        for name, source in found.items()
    }
    own = {name: field for name, field in sources.fields(scope, node).items() if found[name] is field}
    meta = {
        "title": sources.title(node),
        MODELS: read_models(node.properties),
        DYNAMIC_PROMPTS: names_with_choices(sources.specs(node), own),
    }
    return {"class_type": node.type, "inputs": inputs, "_meta": {name: value for name, value in meta.items() if value}}


def _problems(sources: Sources, scope: Scope, node: Node, package: str | None) -> Iterator[GraphProblem]:
    node_id = scope.id_of(node)
    title = f'"{node.title[:_LONGEST_NAME]}", ' if node.title else ""
    where = f"{title}{node.type[:_LONGEST_NAME]} ({node_id})"

    def problem(why: str, kind: type[ComfyError] = GraphRefused) -> GraphProblem:
        return GraphProblem(text=f"{where}: {why}", kind=kind, node_id=node_id)

    if sources.definition(node) is None:
        yield problem(missing_node_text(package), NotInstalled)
        return
    for name, what in inputs_made_in_browser(sources.specs(node)).items():
        yield problem(f"only the browser can create input '{name}': {what}")
