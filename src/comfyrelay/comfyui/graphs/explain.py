"""Turn ComfyUI's validation errors into sentences for users."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from comfyrelay.comfyui.graphs.hash import MODEL_SUFFIXES
from comfyrelay.error_text import user_sentence
from comfyrelay.errors import ComfyError, GraphRefused, InputMissing, NotInstalled

MODEL_INPUTS = frozenset(
    {
        "ckpt_name",
        "unet_name",
        "lora_name",
        "vae_name",
        "clip_name",
        "control_net_name",
        "model_name",
        "style_model_name",
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphProblem:
    """One reason why a server rejects a graph; `kind` is the exception class."""

    text: str
    kind: type[ComfyError] = GraphRefused
    node_id: str | None = None


def failure_of(problems: list[GraphProblem], *, raw: str | None = None) -> ComfyError:
    """Return one error for all problems. An error of the graph itself outweighs missing nodes or models."""
    kinds = {problem.kind for problem in problems}
    kind = next((each for each in (GraphRefused, NotInstalled, InputMissing) if each in kinds), GraphRefused)
    texts = [problem.text for problem in problems]
    node_id = next((problem.node_id for problem in problems if problem.kind is kind), None)
    return kind("; ".join(texts) or None, node_id=node_id, problems=texts, raw=raw)


def explain_refusal(body: Mapping[str, Any], *, raw: str | None = None) -> ComfyError:
    """Convert a 400 response of `/prompt` into an exception."""
    problems = node_problems(body.get("node_errors"))
    if not problems:
        problems = [_general_problem(body.get("error"))]
    return failure_of(problems, raw=raw)


def node_problems(node_errors: object) -> list[GraphProblem]:
    """Return every problem in a `node_errors` object."""
    if not isinstance(node_errors, dict):
        return []
    return [
        _problem(str(node_id), str(entry.get("class_type") or "Node"), error)
        for node_id, entry in node_errors.items()
        if isinstance(entry, dict)
        for error in entry.get("errors") or ()
        if isinstance(error, dict)
    ]


def is_model(input_name: str, value: object) -> bool:
    return input_name in MODEL_INPUTS or (isinstance(value, str) and value.lower().endswith(MODEL_SUFFIXES))


def _general_problem(error: object) -> GraphProblem:
    if not isinstance(error, dict):
        return GraphProblem(
            text=user_sentence(str(error)) if error else "The server refused the graph without a reason."
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
    return GraphProblem(
        text=user_sentence(": ".join(str(error[key]) for key in ("message", "details") if error.get(key)))
    )


def _missing_node(class_type: object, node_id: str) -> GraphProblem:
    if not isinstance(class_type, str) or not class_type:
        return GraphProblem(text=f"Node {node_id} has no class_type.", node_id=node_id)
    return GraphProblem(
        text=f"{class_type} ({node_id}): this node is not installed on the server", kind=NotInstalled, node_id=node_id
    )


def _problem(node_id: str, class_type: str, error: dict[str, Any]) -> GraphProblem:
    extra = _extra(error)
    explain = _EXPLAINED.get(str(error.get("type")), _anything_else)
    text, kind = explain(str(extra.get("input_name") or error.get("details") or "?"), extra, error)
    return GraphProblem(text=f"{class_type} ({node_id}): {text}", kind=kind, node_id=node_id)


Explained = tuple[str, type[ComfyError]]


def _not_connected(name: str, _extra: dict[str, Any], _error: dict[str, Any]) -> Explained:
    return f"input '{name}' is not connected", GraphRefused


def _bad_link(name: str, _extra: dict[str, Any], _error: dict[str, Any]) -> Explained:
    return f"the link of input '{name}' is not a node and an output number", GraphRefused


def _wrong_link(name: str, extra: dict[str, Any], _error: dict[str, Any]) -> Explained:
    config = extra.get("input_config")
    expected = config[0] if isinstance(config, list) and config and isinstance(config[0], str) else "something else"
    return f"input '{name}' takes {expected}, but is connected to {extra.get('received_type')}", GraphRefused


def _wrong_type(name: str, extra: dict[str, Any], _error: dict[str, Any]) -> Explained:
    config = extra.get("input_config")
    expected = config[0] if isinstance(config, list) and config else "another type"
    return f"input '{name}' takes {expected}, not {_shown(extra.get('received_value'))}", GraphRefused


def _too_small(name: str, extra: dict[str, Any], _error: dict[str, Any]) -> Explained:
    limit = _limit(extra, "min")
    return f"input '{name}' is {_shown(extra.get('received_value'))}, but must be at least {limit}", GraphRefused


def _too_big(name: str, extra: dict[str, Any], _error: dict[str, Any]) -> Explained:
    limit = _limit(extra, "max")
    return f"input '{name}' is {_shown(extra.get('received_value'))}, but must be at most {limit}", GraphRefused


def _not_in_list(name: str, extra: dict[str, Any], _error: dict[str, Any]) -> Explained:
    value = extra.get("received_value")
    if is_model(name, value):
        return f"the model {_shown(value)} is not installed on the server (input '{name}')", NotInstalled
    return f"{_shown(value)} is not a choice of input '{name}'", GraphRefused


def _custom(name: str, _extra: dict[str, Any], error: dict[str, Any]) -> Explained:
    details = str(error.get("details") or "")
    _, invalid, file = details.partition("Invalid ")
    if invalid and " file: " in file:
        return f"the file '{file.partition(' file: ')[2]}' is not on the server (input '{name}')", InputMissing
    return user_sentence(details or f"input '{name}' is not valid"), GraphRefused


def _broken(_name: str, extra: dict[str, Any], error: dict[str, Any]) -> Explained:
    exception = str(extra.get("exception_type") or "")
    if exception == "KeyError":
        return "an input is linked to a node that is not in the graph", GraphRefused
    if exception == "IndexError":
        return "an input is linked to an output that its node does not have", GraphRefused
    return (
        f"could not be checked: {user_sentence(str(extra.get('exception_message') or error.get('details')))}",
        GraphRefused,
    )


def _cycle(_name: str, _extra: dict[str, Any], _error: dict[str, Any]) -> Explained:
    return "its links form a cycle", GraphRefused


def _anything_else(_name: str, _extra: dict[str, Any], error: dict[str, Any]) -> Explained:
    return user_sentence(": ".join(str(error[key]) for key in ("message", "details") if error.get(key))), GraphRefused


_EXPLAINED: dict[str, Callable[[str, dict[str, Any], dict[str, Any]], Explained]] = {
    "required_input_missing": _not_connected,
    "bad_linked_input": _bad_link,
    "return_type_mismatch": _wrong_link,
    "invalid_input_type": _wrong_type,
    "value_smaller_than_min": _too_small,
    "value_bigger_than_max": _too_big,
    "value_not_in_list": _not_in_list,
    "custom_validation_failed": _custom,
    "exception_during_validation": _broken,
    "exception_during_inner_validation": _broken,
    "dependency_cycle": _cycle,
}


def _extra(error: dict[str, Any]) -> dict[str, Any]:
    extra = error.get("extra_info")
    return extra if isinstance(extra, dict) else {}


def _limit(extra: dict[str, Any], key: str) -> object:
    config = extra.get("input_config")
    options = config[1] if isinstance(config, list) and len(config) > 1 and isinstance(config[1], dict) else {}
    return options.get(key, "the limit")


def _shown(value: object) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
