"""Validate a graph before it is queued, with ComfyUI's error messages."""

import traceback
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from comfyrelay.simulator.folders import Folders
from comfyrelay.simulator.nodes.catalogue import DEFINITIONS, definitions_of
from comfyrelay.simulator.nodes.definitions import InputSpec, Listings, choices
from comfyrelay.simulator.options import Options
from comfyrelay.simulator.running.errors import type_name

Problem = dict[str, Any]
_LONGEST_LIST = 20
_CONVERSIONS: Mapping[str, type[int | float | str]] = {"INT": int, "FLOAT": float, "STRING": str, "BOOLEAN": bool}


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidationResult:
    """`error` is None if at least one output can run. Even then there may be `node_errors`."""

    error: Problem | None
    outputs: list[str] = field(default_factory=list)
    node_errors: dict[str, Any] = field(default_factory=dict)


NO_CLASS = "Cannot execute because a node is missing the class_type property."


def validate(
    graph: Any, *, targets: Collection[str] | None, folders: Folders, listings: Listings, options: Options
) -> ValidationResult:
    """Validate every output node with its inputs, converting numbers to the declared types.

    A malformed graph may raise any error, for which ComfyUI returns a plain 500. In current versions, errors about
    missing nodes and cycles have their own types.
    """
    known, names_missing = definitions_of(options), options.is_current
    outputs: list[str] = []
    for node_id, node in graph.items():
        if "class_type" not in node:
            return _without_class(node_id, node) if names_missing else _invalid(node_id, NO_CLASS)
        definition = known.get(node["class_type"])
        if definition is None:
            if names_missing:
                return _missing(node_id, node)
            return _invalid(node_id, f"Cannot execute because node {node['class_type']} does not exist.")
        if definition.is_output and (targets is None or node_id in targets):
            outputs.append(node_id)
    if not outputs:
        return ValidationResult(error=problem("prompt_no_outputs", "Prompt has no outputs", ""))
    return _Validation(graph, folders, listings, names_cycles=options.is_current).result(outputs)


def problem(kind: str, message: str, details: str, **extra_info: Any) -> Problem:
    return {"type": kind, "message": message, "details": details, "extra_info": extra_info}


def _invalid(node_id: str, message: str) -> ValidationResult:
    return ValidationResult(error=problem("invalid_prompt", message, f"Node ID '#{node_id}'"))


def _without_class(node_id: str, node: dict[str, Any]) -> ValidationResult:
    title = node.get("_meta", {}).get("title")
    reason = "has no class_type. The workflow may be corrupted or a custom node is missing."
    return _missing_type(node_id, f"Node '{title or f'ID #{node_id}'}' {reason}", class_type=None, title=title)


def _missing(node_id: str, node: dict[str, Any]) -> ValidationResult:
    title = node.get("_meta", {}).get("title", node["class_type"])
    message = f"Node '{title}' not found. The custom node may not be installed."
    return _missing_type(node_id, message, class_type=node["class_type"], title=title)


def _missing_type(node_id: str, message: str, *, class_type: Any, title: Any) -> ValidationResult:
    extra = {"node_id": node_id, "class_type": class_type, "node_title": title}
    return ValidationResult(error=problem("missing_node_type", message, f"Node ID '#{node_id}'", **extra))


class _Validation:
    def __init__(self, graph: dict[str, Any], folders: Folders, listings: Listings, *, names_cycles: bool) -> None:
        self._graph = graph
        self._folders = folders
        self._listings = listings
        self._names_cycles = names_cycles
        # The nodes from the output to the current one.
        self._path: list[str] = []
        self._problems: dict[str, list[Problem]] = {}
        self._is_valid: dict[str, bool] = {}

    def result(self, outputs: list[str]) -> ValidationResult:
        valid: list[str] = []
        reasons: list[Problem] = []
        node_errors: dict[str, Any] = {}
        for output in outputs:
            if self._check_output(output):
                valid.append(output)
                continue
            reasons += self._problems[output]
            self._report(output, node_errors)
        if valid:
            return ValidationResult(error=None, outputs=valid, node_errors=node_errors)
        details = "\n".join(f"{reason['message']}: {reason['details']}" for reason in reasons)
        error = problem("prompt_outputs_failed_validation", "Prompt outputs failed validation", details)
        return ValidationResult(error=error, node_errors=node_errors)

    def _check_output(self, output: str) -> bool:
        try:
            return self._check_node(output)
        except Exception as error:
            extra = {"exception_type": type_name(type(error)), "traceback": traceback.format_tb(error.__traceback__)}
            found = problem("exception_during_validation", "Exception when validating node", str(error), **extra)
            self._is_valid[output], self._problems[output] = False, [found]
            return False

    def _report(self, output: str, node_errors: dict[str, Any]) -> None:
        # ComfyUI lists the output for every faulty node seen so far.
        for node_id, problems in self._problems.items():
            if problems:
                empty = {"errors": problems, "dependent_outputs": [], "class_type": self._graph[node_id]["class_type"]}
                node_errors.setdefault(node_id, empty)["dependent_outputs"].append(output)

    def _check_node(self, node_id: str) -> bool:
        if node_id in self._path:
            if self._names_cycles:
                self._add_cycle(node_id)
            return False
        if node_id in self._is_valid:
            return self._is_valid[node_id]
        self._path.append(node_id)
        try:
            is_valid, problems = self._check_inputs(self._graph[node_id])
        finally:
            self._path.pop()
        # A cycle may have been found at this node.
        self._problems[node_id] = problems = self._problems.get(node_id, []) + problems
        self._is_valid[node_id] = is_valid and not problems
        return self._is_valid[node_id]

    def _check_inputs(self, node: dict[str, Any]) -> tuple[bool, list[Problem]]:
        definition = DEFINITIONS[node["class_type"]]
        inputs = node["inputs"]
        problems: list[Problem] = []
        is_valid = True
        for name, spec in definition.inputs(self._listings).items():
            if name in inputs:
                noun = definition.file_noun if name == definition.file_input else None
                found = self._check_input(inputs, name, spec, file_noun=noun)
                is_valid = is_valid and found is None
                problems += found or []
            elif name in definition.required:
                problems.append(problem("required_input_missing", "Required input is missing", name, input_name=name))
        return is_valid, problems

    def _add_cycle(self, node_id: str) -> None:
        cycle = self._path[self._path.index(node_id) :]
        path = " -> ".join(f"{each} ({self._graph[each]['class_type']})" for each in [*cycle, node_id])
        for each in cycle:
            found = problem("dependency_cycle", "Dependency cycle detected", path, node_id=each, cycle_nodes=cycle)
            self._problems[each] = [found]

    def _check_input(
        self, inputs: dict[str, Any], name: str, spec: InputSpec, *, file_noun: str | None
    ) -> list[Problem] | None:
        """Return None if the input is valid, or an empty list if the error belongs to another node."""
        value = inputs[name]
        if isinstance(value, list):
            return self._check_link(name, spec, value)
        if isinstance(value, dict) and "__value__" in value:
            value = inputs[name] = value["__value__"]
        about = {"input_name": name, "input_config": _config(spec), "received_value": value}
        if not isinstance(spec[0], list) and (convert := _CONVERSIONS.get(spec[0])):
            try:
                value = inputs[name] = about["received_value"] = convert(value)
            except Exception as error:
                message = f"Failed to convert an input value to a {spec[0]} value"
                details = f"{name}, {value}, {error}"
                return [problem("invalid_input_type", message, details, **about, exception_message=str(error))]
        if file_noun is not None:
            return self._check_file(name, value, file_noun)
        return _out_of_range(name, spec, value, about) or _not_in_list(name, spec, value, about)

    def _check_link(self, name: str, spec: InputSpec, value: list[Any]) -> list[Problem] | None:
        about = {"input_name": name, "input_config": _config(spec)}
        if len(value) != 2:
            message = "Bad linked input, must be a length-2 list of [node_id, slot_index]"
            return [problem("bad_linked_input", message, name, **about, received_value=value)]
        linked, slot = value
        received = DEFINITIONS[self._graph[linked]["class_type"]].output[slot]
        wanted = spec[0] if isinstance(spec[0], str) else "COMBO"
        if "*" not in (received, wanted) and received not in wanted.split(","):
            details = f"{name}, received_type({received}) mismatch input_type({wanted})"
            message = "Return type mismatch between linked nodes"
            return [
                problem("return_type_mismatch", message, details, **about, received_type=received, linked_node=value)
            ]
        try:
            return None if self._check_node(linked) else []
        except Exception as error:
            self._is_valid[linked] = False
            self._problems[linked] = [_inner_exception(error, about, value)]
            return []

    def _check_file(self, name: str, value: Any, noun: str) -> list[Problem] | None:
        if self._folders.has_file(value):
            return None
        details = f"{name} - Invalid {noun} file: {value}"
        return [problem("custom_validation_failed", "Custom validation failed for node", details, input_name=name)]


def _config(spec: InputSpec) -> list[Any]:
    return [spec[0], spec[1] if len(spec) > 1 else {}]


def _inner_exception(error: Exception, about: dict[str, Any], linked: list[Any]) -> Problem:
    return problem(
        "exception_during_inner_validation",
        "Exception when validating inner node",
        str(error),
        **about,
        exception_message=str(error),
        exception_type=type_name(type(error)),
        traceback=traceback.format_tb(error.__traceback__),
        linked_node=linked,
    )


def _out_of_range(name: str, spec: InputSpec, value: Any, about: dict[str, Any]) -> list[Problem] | None:
    limits = spec[1] if len(spec) > 1 else {}
    if "min" in limits and value < limits["min"]:
        message = f"Value {value} smaller than min of {limits['min']}"
        return [problem("value_smaller_than_min", message, name, **about)]
    if "max" in limits and value > limits["max"]:
        message = f"Value {value} bigger than max of {limits['max']}"
        return [problem("value_bigger_than_max", message, name, **about)]
    return None


def _not_in_list(name: str, spec: InputSpec, value: Any, about: dict[str, Any]) -> list[Problem] | None:
    allowed = choices(spec)
    if allowed is None or value in allowed:
        return None
    shown = str(list(allowed))
    if len(allowed) > _LONGEST_LIST:
        shown = f"(list of length {len(allowed)})"
        about = {**about, "input_config": None}
    return [problem("value_not_in_list", "Value not in list", f"{name}: '{value}' not in {shown}", **about)]
