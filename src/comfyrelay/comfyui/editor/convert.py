"""From the editor's workflow to the graph that a server runs, as the editor itself does it when it sends one.

Subgraphs are laid flat, reroutes and bypassed nodes passed through, muted ones left out, and fields get their names.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from comfyrelay.comfyui.editor import editor_only_nodes
from comfyrelay.comfyui.editor.sources import DEEPEST_SUBGRAPH, Literal, NodeOutput, Scope, Sources
from comfyrelay.comfyui.editor.widgets import as_input, made_in_browser, marks_in
from comfyrelay.comfyui.editor.workflow import Node, read_workflow
from comfyrelay.comfyui.graphs.explain import GraphProblem, failure_of
from comfyrelay.comfyui.graphs.graph import Graph, in_circle
from comfyrelay.errors import ComfyError, GraphError, GraphRefused, NotInstalled

# Beyond this it is no workflow, but something that was made to take up memory.
MOST_NODES = 20_000
_MOST_INPUTS = 50 * MOST_NODES
# Of what a prompt with choices and comments is taken apart by.
MOST_MARKS = 300_000
# Of names in a message: one subgraph may stand for thousands, and each would be told of.
_LONGEST_NAME = 80
# So many classes that are missing are named; no workflow that somebody made has more.
_MOST_CLASSES = 200
# Of the places of one class that is missing.
MOST_NAMED = 3


def convert_workflow(value: Mapping[str, Any], definitions: Mapping[str, Any]) -> Graph:
    """The graph of an editor's workflow, given the definitions of a server's nodes (`/object_info`).

    What cannot be converted is named, all at once: `GraphRefused`, or `NotInstalled` where only nodes are missing.
    """
    workflow = read_workflow(value)
    sources = Sources(workflow, definitions)
    graph: Graph = {}
    problems: list[GraphProblem] = []
    missing: dict[str, list[str]] = {}
    for scope, node in _running(Scope(workflow.root), sources):
        found = list(_problems(sources, scope, node))
        problems += found
        if any(problem.kind is NotInstalled for problem in found):
            missing.setdefault(node.type, []).append(scope.id_of(node))
        if not found:
            graph[scope.id_of(node)] = _entry(sources, scope, node)
    if problems:
        failure = failure_of(problems)
        if isinstance(failure, NotInstalled):
            raise NotInstalled(
                _lacking(missing), node_types=list(missing), node_id=failure.node_id, problems=failure.problems
            )
        raise failure
    if not graph:
        raise GraphError("The workflow has no node that runs: all of them are muted, bypassed or notes.")
    for entry in graph.values():
        # what only muted nodes would give is not given
        entry["inputs"] = {
            name: value for name, value in entry["inputs"].items() if not isinstance(value, list) or value[0] in graph
        }
    if circle := in_circle(graph):
        raise GraphError(f"Nodes feed each other in a circle, so that none can run first: {', '.join(circle[:10])}.")
    return graph


def _lacking(missing: Mapping[str, list[str]]) -> str:
    """One list that can be read, whoever has the nodes: each class once, with where it is."""
    named = [
        f"{name[:_LONGEST_NAME]} (node{'s' if len(ids) > 1 else ''} "
        f"{', '.join(node_id[:_LONGEST_NAME] for node_id in ids[:MOST_NAMED])}{', …' * (len(ids) > MOST_NAMED)})"
        for name, ids in islice(missing.items(), _MOST_CLASSES)
    ]
    if len(missing) > len(named):
        named.append(f"and {len(missing) - len(named)} more")
    return f"{'These nodes are' if len(named) > 1 else 'This node is'} not installed: {', '.join(named)}."


def _running(root: Scope, sources: Sources) -> Iterator[tuple[Scope, Node]]:
    pending, count, inputs, marks = [root], _within(len(root.sheet.nodes), root), 0, 0
    while pending:
        scope = pending.pop()
        for node in scope.sheet.nodes.values():
            if node.type in editor_only_nodes.VIRTUAL or node.is_off:
                continue
            if (inside := sources.inside(scope, node)) is not None:
                # counted here: many that wait would take up memory before the first of them is looked at
                count = _within(count + len(inside.sheet.nodes), inside)
                pending.append(inside)
            # a subgraph with many of them may be used often
            inputs += len(sources.inputs(node)) + len(node.values)
            if inputs > _MOST_INPUTS:
                raise GraphError(f"The workflow is too large: more than {_MOST_INPUTS:,} inputs and values.")
            marks += marks_in(node.values.values() if isinstance(node.values, dict) else node.values)
            if marks > MOST_MARKS:
                raise GraphError(f"The texts of the workflow have more than {MOST_MARKS:,} brackets and slashes.")
            if inside is None:
                yield scope, node


def _within(count: int, scope: Scope) -> int:
    if count > MOST_NODES or len(scope.path) > DEEPEST_SUBGRAPH:
        raise GraphError(
            f"The workflow is too large: more than {MOST_NODES:,} nodes, or subgraphs within subgraphs "
            f"beyond {DEEPEST_SUBGRAPH} levels."
        )
    return count


def _entry(sources: Sources, scope: Scope, node: Node) -> dict[str, Any]:
    inputs = {name: as_input(value) for name, value in sources.fields(scope, node).items()}
    for slot in sources.inputs(node):
        match sources.source(scope, node, slot):
            case NodeOutput(node_id, at):
                inputs[slot.name] = [node_id, at]
            case Literal(value):
                inputs[slot.name] = as_input(value)
    display_name = (sources.definition(node) or {}).get("display_name")
    return {
        "class_type": node.type,
        "inputs": inputs,
        "_meta": {"title": node.title or str(display_name or node.type)},
    }


def _problems(sources: Sources, scope: Scope, node: Node) -> Iterator[GraphProblem]:
    node_id = scope.id_of(node)

    def problem(why: str, kind: type[ComfyError] = GraphRefused) -> GraphProblem:
        kind_of_node = node.type[:_LONGEST_NAME]
        title = f'"{node.title[:_LONGEST_NAME]}", ' if node.title else ""
        named = f"{title}{kind_of_node} ({node_id})"
        return GraphProblem(text=f"{named}: {why}", kind=kind, node_id=node_id)

    definition = sources.definition(node)
    if definition is None:
        yield problem("this node is not installed on the server", NotInstalled)
        return
    if node.type.startswith(editor_only_nodes.BROADCASTS):
        yield problem("it gives other nodes their inputs without links. Turn them into links in the editor")
    for name in made_in_browser(sources.specs(node)):
        yield problem(f"input '{name}' is made in the browser. Use a node that loads a file instead")
