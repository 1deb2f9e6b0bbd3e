"""Turn ComfyUI's validation errors into sentences for users."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.graphs.hash import MODEL_SUFFIXES
from comfyrelay.comfyui.graphs.model_sources import source_of, sources_in
from comfyrelay.error_text import user_sentence
from comfyrelay.errors import ComfyError, GraphRefused, InputMissing, NotInstalled

_NO_GRAPH: Graph = {}
MODEL_INPUTS = frozenset(
    {
        *("ckpt_name", "unet_name", "lora_name", "vae_name"),
        *("clip_name", "control_net_name", "model_name", "style_model_name"),
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphProblem:
    """One reason why a server rejects a graph; `kind` is the exception class."""

    text: str
    kind: type[ComfyError] = GraphRefused
    node_id: str | None = None


def failure_of(problems: list[GraphProblem], *, raw: str | None = None) -> ComfyError:
    """Return one error for all problems. An error in the graph itself takes precedence over missing nodes or models."""
    kinds = {problem.kind for problem in problems}
    kind = next((kind for kind in (GraphRefused, NotInstalled, InputMissing) if kind in kinds), GraphRefused)
    texts = [problem.text for problem in problems]
    node_id = next((problem.node_id for problem in problems if problem.kind is kind), None)
    return kind("; ".join(texts) or None, node_id=node_id, problems=texts, raw=raw)


def explain_refusal(body: Mapping[str, Any], *, raw: str | None = None, graph: Graph = _NO_GRAPH) -> ComfyError:
    """Convert a 400 response of `/prompt` into an exception. `graph` may name the sources of missing models."""
    problems = node_problems(body.get("node_errors"), graph) or [_general_problem(body.get("error"))]
    return failure_of(problems, raw=raw)


def node_problems(node_errors: object, graph: Graph = _NO_GRAPH) -> list[GraphProblem]:
    """Return every problem in a `node_errors` object."""
    if not isinstance(node_errors, dict):
        return []
    sources = sources_in(graph)
    return [
        _problem(str(node_id), str(entry.get("class_type") or "Node"), error, sources)
        for node_id, entry in node_errors.items()
        if isinstance(entry, dict)
        for error in entry.get("errors") or ()
        if isinstance(error, dict)
    ]


def is_model(input_name: str, value: object) -> bool:
    """Whether the value of an input names a model, by its suffix or the input's name."""
    return input_name in MODEL_INPUTS or (isinstance(value, str) and value.lower().endswith(MODEL_SUFFIXES))


def _general_problem(error: object) -> GraphProblem:
    if not isinstance(error, dict):
        return GraphProblem(
            text=user_sentence(str(error)) if error else "The server refused the graph without giving a reason."
        )
    kind, extra = error.get("type"), _extra(error)
    message = str(error.get("message") or "")
    if kind == "prompt_no_outputs":
        return GraphProblem(text="The graph has no output node: add one that saves or previews something.")
    if kind == "missing_node_type":
        return _missing_node(extra.get("class_type"), str(extra.get("node_id") or "?"))
    if kind == "invalid_prompt" and "does not exist" in message:
        # ComfyUI 0.7.0 names the class in the middle of its sentence and the node in the details, as #id.
        name = message.partition("node ")[2].partition(" does not exist")[0]
        return _missing_node(name, str(error.get("details") or "").partition("#")[2].strip("'"))
    if kind == "prompt_outputs_failed_validation" and not error.get("details"):
        # ComfyUI 0.7.0 gives no reason for a cycle of links.
        return GraphProblem(text="The server refused every output of the graph; its links may form a cycle.")
    return GraphProblem(text=_message_and_details(error))


def _missing_node(class_type: object, node_id: str) -> GraphProblem:
    if not isinstance(class_type, str) or not class_type:
        return GraphProblem(text=f"Node {node_id} has no class_type.", node_id=node_id)
    return GraphProblem(text=f"{class_type} ({node_id}): {missing_node_text(None)}", kind=NotInstalled, node_id=node_id)


def _problem(node_id: str, class_type: str, error: dict[str, Any], sources: Mapping[str, str]) -> GraphProblem:
    extra = _extra(error)
    text, kind = _explain(str(extra.get("input_name") or error.get("details") or "?"), extra, error, sources)
    return GraphProblem(text=f"{class_type} ({node_id}): {text}", kind=kind, node_id=node_id)


def missing_node_text(package: str | None) -> str:
    return f"this node is not installed on the server{'' if package is None else f' (package {package})'}"


def missing_model_text(shown: str, input_name: str, source: str | None) -> str:
    origin = "" if source is None else f"; the workflow's author got it from {source}"
    return f"the model {shown} is not installed on the server (input '{input_name}'){origin}"


def _explain(
    name: str, extra: dict[str, Any], error: dict[str, Any], sources: Mapping[str, str]
) -> tuple[str, type[ComfyError]]:
    """Return the text and the exception class for one error of a node."""
    kind, value = str(error.get("type")), extra.get("received_value")
    if kind in _TEXTS:
        return _TEXTS[kind].format(name=name, value=_shown(value), **_expectations(extra)), GraphRefused
    if kind == "value_not_in_list" and is_model(name, value):
        return missing_model_text(_shown(value), name, source_of(sources, value)), NotInstalled
    if kind == "value_not_in_list":
        return f"{_shown(value)} is not a choice of input '{name}'", GraphRefused
    if kind == "custom_validation_failed":
        return _explain_custom_validation(name, str(error.get("details") or ""))
    if kind in ("exception_during_validation", "exception_during_inner_validation"):
        return _explain_exception(extra, error), GraphRefused
    return _message_and_details(error), GraphRefused


_TEXTS = {
    "required_input_missing": "input '{name}' is not connected",
    "bad_linked_input": "the link of input '{name}' is not a node and an output number",
    "return_type_mismatch": "input '{name}' takes {link_type}, but is connected to {received_type}",
    "invalid_input_type": "input '{name}' takes {value_type}, not {value}",
    "value_smaller_than_min": "input '{name}' is {value}, but must be at least {min}",
    "value_bigger_than_max": "input '{name}' is {value}, but must be at most {max}",
    "dependency_cycle": "its links form a cycle",
}


def _expectations(extra: dict[str, Any]) -> dict[str, object]:
    """Return the values for the texts of `_explain`: what an input accepts, and the type it is connected to."""
    config = extra.get("input_config")
    spec = config if isinstance(config, list) else []
    options = spec[1] if len(spec) > 1 and isinstance(spec[1], dict) else {}
    return {
        "link_type": spec[0] if spec and isinstance(spec[0], str) else "something else",
        "value_type": spec[0] if spec else "another type",
        "received_type": extra.get("received_type"),
        "min": options.get("min", "the limit"),
        "max": options.get("max", "the limit"),
    }


def _explain_custom_validation(name: str, details: str) -> tuple[str, type[ComfyError]]:
    _, invalid, file = details.partition("Invalid ")
    if invalid and " file: " in file:
        return f"the file '{file.partition(' file: ')[2]}' is not on the server (input '{name}')", InputMissing
    return user_sentence(details or f"input '{name}' is not valid"), GraphRefused


def _explain_exception(extra: dict[str, Any], error: dict[str, Any]) -> str:
    exception = extra.get("exception_type")
    if exception == "KeyError":
        return "an input is linked to a node that is not in the graph"
    if exception == "IndexError":
        return "an input is linked to an output that its node does not have"
    return f"could not be checked: {user_sentence(str(extra.get('exception_message') or error.get('details')))}"


def _message_and_details(error: dict[str, Any]) -> str:
    return user_sentence(": ".join(str(error[key]) for key in ("message", "details") if error.get(key)))


def _extra(error: dict[str, Any]) -> dict[str, Any]:
    extra = error.get("extra_info")
    return extra if isinstance(extra, dict) else {}


def _shown(value: object) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
