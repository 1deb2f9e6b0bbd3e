"""Validate a graph in the same way as ComfyUI, with its error messages, against the node definitions of all workers."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from comfyrelay.comfyui.graphs.cycles import find_cycles
from comfyrelay.comfyui.graphs.graph import Graph, is_link
from comfyrelay.comfyui.graphs.nodes import output_nodes
from comfyrelay.comfyui.graphs.preflight import choices_of, input_specs, is_upload, options_of

Problem = dict[str, Any]
# The node id and input name of each file that the caller does not have.
MissingFiles = Collection[tuple[str, str]]
# ComfyUI shows at most this many choices.
LONGEST_LIST = 20
# ComfyUI repeats the whole cycle for each of its nodes, which is too much for cycles of hundreds of nodes.
MAX_CYCLE_NODES = 20
_CONVERSIONS: Mapping[str, type[int | float | str]] = {"INT": int, "FLOAT": float, "STRING": str, "BOOLEAN": bool}
_MEDIA = ("audio", "image", "video")
# The type of a reference to a file of the user.
ASSET = "core/ASSET"
# Other types may be generic, so only ComfyUI knows whether they match.
_PLAIN_TYPES = frozenset(
    {"AUDIO", "CLIP", "CONDITIONING", "IMAGE", "LATENT", "MASK", "MODEL", "VAE", "VIDEO", *_CONVERSIONS}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidatedGraph:
    """`error` is `None` if at least one output can run. Even then there may be `node_errors`."""

    error: Problem | None = None
    outputs: list[str] = field(default_factory=list)
    node_errors: dict[str, Any] = field(default_factory=dict)


def problem(kind: str, message: str, details: str = "", **extra_info: Any) -> Problem:
    return {"type": kind, "message": message, "details": details, "extra_info": extra_info}


def shape_problem(graph: object) -> Problem | None:
    """Return why a value is not a graph in the API format; `None` if it is one."""
    if not isinstance(graph, dict):
        return problem("invalid_prompt", "The prompt is not an object of nodes.")
    for node_id, node in graph.items():
        title = title_in(node) or f"ID #{node_id}"
        if not isinstance(node, dict) or not isinstance(node.get("class_type"), str):
            reason = "has no class_type. The workflow may be corrupted or a custom node is missing."
            extra = {"node_id": node_id, "class_type": None, "node_title": title_in(node)}
            return problem("missing_node_type", f"Node '{title}' {reason}", f"Node ID '#{node_id}'", **extra)
        if not isinstance(node.get("inputs", {}), dict):
            return problem(
                "invalid_prompt", f"The inputs of node '{title}' are not an object.", f"Node ID '#{node_id}'"
            )
    return None


def validate(
    graph: Graph,
    definitions: Mapping[str, Any] | None,
    *,
    targets: Collection[str] | None = None,
    missing_files: MissingFiles = (),
) -> ValidatedGraph:
    """Validate every output node with its ancestors. Without definitions, only missing files and cycles are found."""
    if definitions is not None:
        for node_id, node in graph.items():
            if not isinstance(definitions.get(node["class_type"]), dict):
                return ValidatedGraph(error=_missing_node(node_id, node))
    outputs = [node_id for node_id in output_nodes(graph, definitions) if targets is None or node_id in targets]
    if not outputs:
        return ValidatedGraph(error=problem("prompt_no_outputs", "Prompt has no outputs"))
    found = {
        node_id: [*_node_problems(node_id, graph, definitions or {}), *_file_problems(node_id, graph, missing_files)]
        for node_id in graph
    }
    for cycle in find_cycles(graph, outputs):
        for node_id in cycle[:MAX_CYCLE_NODES]:
            found[node_id].insert(0, _cycle_problem(node_id, cycle, graph))
    return _judge(graph, outputs, found)


def needed(graph: Graph, outputs: Collection[str]) -> Graph:
    """Return the nodes that these outputs need, in the order of the graph."""
    kept, pending = set(outputs), list(outputs)
    while pending:
        for value in graph[pending.pop()]["inputs"].values():
            if is_link(value) and value[0] in graph and value[0] not in kept:
                kept.add(value[0])
                pending.append(value[0])
    return {node_id: node for node_id, node in graph.items() if node_id in kept}


def title_in(node: object) -> str | None:
    meta = node.get("_meta") if isinstance(node, dict) else None
    title = meta.get("title") if isinstance(meta, dict) else None
    return title if isinstance(title, str) else None


def _judge(graph: Graph, outputs: list[str], found: Mapping[str, list[Problem]]) -> ValidatedGraph:
    if not any(found.values()):
        return ValidatedGraph(outputs=outputs)
    valid: list[str] = []
    reasons: list[Problem] = []
    node_errors: dict[str, Any] = {}
    for output in outputs:
        faulty = [node_id for node_id in needed(graph, [output]) if found[node_id]]
        if not faulty:
            valid.append(output)
        reasons += found[output]
        for node_id in faulty:
            class_type = graph[node_id]["class_type"]
            about = {"errors": found[node_id], "dependent_outputs": [], "class_type": class_type}
            node_errors.setdefault(node_id, about)["dependent_outputs"].append(output)
    if valid:
        return ValidatedGraph(outputs=valid, node_errors=node_errors)
    details = "\n".join(f"{reason['message']}: {reason['details']}" for reason in reasons)
    error = problem("prompt_outputs_failed_validation", "Prompt outputs failed validation", details)
    return ValidatedGraph(error=error, node_errors=node_errors)


def _missing_node(node_id: str, node: Mapping[str, Any]) -> Problem:
    class_type, title = node["class_type"], title_in(node) or node["class_type"]
    message = f"Node '{title}' not found. The custom node may not be installed."
    extra = {"node_id": node_id, "class_type": class_type, "node_title": title}
    return problem("missing_node_type", message, f"Node ID '#{node_id}'", **extra)


def _cycle_problem(node_id: str, cycle: list[str], graph: Graph) -> Problem:
    shown = cycle[:MAX_CYCLE_NODES]
    path = [f"{each} ({graph[each]['class_type']})" for each in (*shown, cycle[0])]
    if len(shown) < len(cycle):
        path.insert(-1, "…")
    details = " -> ".join(path)
    extra = {"node_id": node_id, "cycle_nodes": shown}
    return problem("dependency_cycle", "Dependency cycle detected", details, **extra)


def _file_problems(node_id: str, graph: Graph, missing: MissingFiles) -> Iterator[Problem]:
    for name, value in graph[node_id]["inputs"].items():
        if (node_id, name) in missing:
            details = f"{name} - Invalid {name if name in _MEDIA else 'image'} file: {value}"
            extra = {"input_name": name, "received_value": value}
            yield problem("custom_validation_failed", "Custom validation failed for node", details, **extra)


def _node_problems(node_id: str, graph: Graph, definitions: Mapping[str, Any]) -> Iterator[Problem]:
    node = graph[node_id]
    definition = definitions.get(node["class_type"]) or {}
    required = (definition.get("input") or {}).get("required") or {}
    for name, spec in input_specs(definition):
        if name in node["inputs"]:
            yield from _value_problems(name, node["inputs"][name], spec, graph, definitions)
        elif name in required and not str(spec[0]).startswith("COMFY_AUTOGROW"):
            yield problem("required_input_missing", "Required input is missing", name, input_name=name)


def _value_problems(
    name: str, value: Any, spec: list[Any], graph: Graph, definitions: Mapping[str, Any]
) -> Iterator[Problem]:
    about: dict[str, Any] = {"input_name": name, "input_config": spec, "received_value": value}
    if isinstance(value, list):
        yield from _link_problems(name, value, spec, graph, definitions)
        return
    if isinstance(value, dict) and value.get("__type") == ASSET:
        # Clients of the Comfy API name files in this way, and ComfyUI gets a file name.
        return
    if isinstance(value, dict) and "__value__" in value:
        value = about["received_value"] = value["__value__"]
    convert = _CONVERSIONS.get(spec[0]) if isinstance(spec[0], str) else None
    if convert is not None:
        try:
            value = convert(value)
        except (OverflowError, TypeError, ValueError) as error:
            message = f"Failed to convert an input value to a {spec[0]} value"
            yield problem(
                "invalid_input_type", message, f"{name}, {value}, {error}", **about, exception_message=str(error)
            )
            return
    options = options_of(spec)
    if isinstance(value, int | float):
        yield from _range_problems(name, value, options, about)
    choices = choices_of(spec)
    # An empty list is unknown, such as that of `CustomCombo`, which the graph itself defines.
    if choices and not is_upload(spec) and not options.get("multiselect") and value not in choices:
        shown = str(choices) if len(choices) <= LONGEST_LIST else f"(list of length {len(choices)})"
        shown_config = spec if len(choices) <= LONGEST_LIST else None
        details = f"{name}: '{value}' not in {shown}"
        yield problem("value_not_in_list", "Value not in list", details, **{**about, "input_config": shown_config})


def _range_problems(name: str, value: float, options: Mapping[str, Any], about: Mapping[str, Any]) -> Iterator[Problem]:
    least, most = options.get("min"), options.get("max")
    if isinstance(least, int | float) and value < least:
        yield problem("value_smaller_than_min", f"Value {value} smaller than min of {least}", name, **about)
    elif isinstance(most, int | float) and value > most:
        yield problem("value_bigger_than_max", f"Value {value} bigger than max of {most}", name, **about)


def _link_problems(
    name: str, value: list[Any], spec: list[Any], graph: Graph, definitions: Mapping[str, Any]
) -> Iterator[Problem]:
    about = {"input_name": name, "input_config": spec}
    if not is_link(value):
        message = "Bad linked input, must be a length-2 list of [node_id, slot_index]"
        yield problem("bad_linked_input", message, name, **about, received_value=value)
        return
    linked, slot = value
    if linked not in graph:
        details = f"{name} is linked to node {linked}, which does not exist"
        yield problem("bad_linked_input", "Linked node does not exist", details, **about, received_value=value)
        return
    types = (definitions.get(graph[linked]["class_type"]) or {}).get("output")
    received = types[slot] if isinstance(types, list) and slot in range(len(types)) else None
    if not isinstance(received, str) or not isinstance(spec[0], str) or received == spec[0]:
        return
    if {received, spec[0]} <= _PLAIN_TYPES:
        details = f"{name}, received_type({received}) mismatch input_type({spec[0]})"
        extra = {"received_type": received, "linked_node": value}
        yield problem("return_type_mismatch", "Return type mismatch between linked nodes", details, **about, **extra)
