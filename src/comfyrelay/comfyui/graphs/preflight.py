"""Find everything that a server lacks for a graph, before the graph is submitted."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from comfyrelay.comfyui.graphs.explain import GraphProblem, is_model, missing_model_text, missing_node_text
from comfyrelay.comfyui.graphs.graph import Graph, is_link
from comfyrelay.comfyui.graphs.hash import MODEL_SUFFIXES
from comfyrelay.comfyui.graphs.model_sources import source_of, sources_in
from comfyrelay.comfyui.graphs.nodes import FOLDER_MARKS, NamedFile, output_nodes
from comfyrelay.errors import GraphRefused, NotInstalled

# Each choice of such an input has its own inputs.
_CHOOSES_INPUTS = "COMFY_DYNAMICCOMBO_V3"
_DEEPEST_CHOICE = 10
# Inputs with these options name a file in the input folder. Their choices do not list all files.
_UPLOAD_MARKS = ("image_upload", "video_upload", "audio_upload", "file_upload", "upload")


def graph_problems(
    graph: Graph, object_info: Mapping[str, Any], *, packages: Mapping[str, str] = MappingProxyType({})
) -> list[GraphProblem]:
    """Check a graph against the definitions of installed nodes. `packages` has the packages of other nodes."""
    problems = [
        problem
        for node_id, node in graph.items()
        for problem in _node_problems(node_id, node, graph, object_info, packages)
    ]
    if not problems and not output_nodes(graph, object_info):
        problems.append(GraphProblem(text="The graph has no output node: add one that saves or previews something."))
    return problems


def uploaded_files(graph: Graph, object_info: Mapping[str, Any]) -> list[NamedFile]:
    """Return the files that a graph expects in the server's folders."""
    return [
        NamedFile(node_id=node_id, class_type=node["class_type"], input=name, name=value)
        for node_id, node in graph.items()
        for name, spec in input_specs(object_info.get(node["class_type"]))
        if is_upload(spec) and isinstance(value := node["inputs"].get(name), str)
    ]


def installed_models(object_info: Mapping[str, Any]) -> set[str]:
    """Return the model files that any node offers as a choice."""
    pending = deque(spec for definition in object_info.values() for _, spec in input_specs(definition))
    specs: list[list[Any]] = []
    while pending:
        specs.append(pending.popleft())
        pending.extend(spec for _, spec in inner_specs(specs[-1]))
    choices = [choice for spec in specs for choice in choices_of(spec) or () if isinstance(choice, str)]
    return {choice for choice in choices if choice.lower().endswith(MODEL_SUFFIXES)}


def file_query(name: str) -> dict[str, str]:
    """Return the parameters of `/view` for a file name in a graph, such as `folder/a.png [output]`."""
    mark = next((mark for mark in FOLDER_MARKS if name.endswith(mark)), " [input]")
    folder, _, filename = name.removesuffix(mark).rpartition("/")
    return {"filename": filename, "subfolder": folder, "type": mark.strip(" []")}


def _node_problems(
    node_id: str,
    node: dict[str, Any],
    graph: Graph,
    object_info: Mapping[str, Any],
    packages: Mapping[str, str],
) -> Iterable[GraphProblem]:
    class_type = node["class_type"]
    definition = object_info.get(class_type)
    where = f"{class_type} ({node_id})"
    if not isinstance(definition, dict):
        yield GraphProblem(
            text=f"{where}: {missing_node_text(packages.get(class_type))}", kind=NotInstalled, node_id=node_id
        )
        return
    sources = sources_in({node_id: node})
    for name, spec, is_required in _read_specs(definition.get("input"), node["inputs"]):
        if is_required and name not in node["inputs"] and not _is_repeatable(spec):
            yield GraphProblem(text=f"{where}: input '{name}' is not connected", node_id=node_id)
        if (problem := _value_problem(name, node["inputs"].get(name), spec, graph, sources)) is not None:
            kind, text = problem
            yield GraphProblem(text=f"{where}: {text}", kind=kind, node_id=node_id)


def _read_specs(
    inputs: object, values: Mapping[str, Any], before: str = "", depth: int = 0
) -> Iterator[tuple[str, list[Any], bool]]:
    """Yield the name and spec of each input, and whether it is required. Includes the inputs of chosen options."""
    required = inputs.get("required") if isinstance(inputs, dict) else None
    for inner, spec in _specs_in(inputs):
        name = f"{before}{inner}"
        yield name, spec, isinstance(required, dict) and inner in required
        if name in values and depth < _DEEPEST_CHOICE:
            for option in _options_with_inputs(spec):
                if option["key"] == values[name]:
                    yield from _read_specs(option.get("inputs"), values, f"{name}.", depth + 1)


def _options_with_inputs(spec: list[Any]) -> list[dict[str, Any]]:
    options = options_of(spec).get("options") if spec[0] == _CHOOSES_INPUTS else None
    found = options if isinstance(options, list) else []
    return [option for option in found if isinstance(option, dict) and "key" in option]


def _value_problem(
    name: str, value: object, spec: list[Any], graph: Graph, sources: Mapping[str, str]
) -> tuple[type[GraphRefused | NotInstalled], str] | None:
    if is_link(value):
        known = value[0] in graph
        return None if known else (GraphRefused, f"input '{name}' is linked to node {value[0]}, which does not exist")
    options = choices_of(spec) or [option["key"] for option in _options_with_inputs(spec)] or None
    if value is None or options is None or is_upload(spec) or value in options:
        return None
    if is_model(name, value):
        return NotInstalled, missing_model_text(repr(value), name, source_of(sources, value))
    return GraphRefused, f"{value!r} is not a choice of input '{name}'"


def input_specs(definition: object) -> list[tuple[str, list[Any]]]:
    """Return the name and spec of each input of a node: required, then optional."""
    return _specs_in(definition.get("input") if isinstance(definition, dict) else None)


def specs_for(specs: Mapping[str, list[Any]], name: str) -> list[list[Any]]:
    """Return every spec that may define an input: each choice of `a` may define `a.b` differently."""
    if name in specs:
        return [specs[name]]
    outer, dot, inner = name.partition(".")
    return _inner_specs(specs[outer], inner) if dot and outer in specs else []


def inner_specs(spec: list[Any]) -> list[tuple[str, list[Any]]]:
    """Return the nested inputs of an input: the inputs of its choices, and repeated inputs."""
    return [*_named_inside(spec), *_any_inside(spec)]


def _inner_specs(spec: list[Any], name: str) -> list[list[Any]]:
    outer, dot, inner = name.partition(".")
    # Repeated inputs are `image0`, `image1` and so on, so any name matches.
    found = [inside for known, inside in _named_inside(spec) if known == outer]
    found += [inside for _, inside in _any_inside(spec)]
    return found if not dot else [deep for holder in found for deep in _inner_specs(holder, inner)]


def _named_inside(spec: list[Any]) -> list[tuple[str, list[Any]]]:
    options = options_of(spec)
    choices = options.get("options")
    parts = [options, *(choices if isinstance(choices, list) else ())]
    return [found for part in parts if isinstance(part, dict) for found in _specs_in(part.get("inputs"))]


def _any_inside(spec: list[Any]) -> list[tuple[str, list[Any]]]:
    template = options_of(spec).get("template")
    return _specs_in(template.get("input")) if isinstance(template, dict) else []


def _specs_in(inputs: object) -> list[tuple[str, list[Any]]]:
    parts = [inputs.get(part) for part in ("required", "optional")] if isinstance(inputs, dict) else []
    return [
        (name, spec)
        for part in parts
        if isinstance(part, dict)
        for name, spec in part.items()
        if isinstance(spec, list) and spec
    ]


def choices_of(spec: list[Any]) -> list[Any] | None:
    """Return the choices of an input, from the old or new format of definitions."""
    if isinstance(spec[0], list):
        return spec[0]
    choices = options_of(spec).get("options") if spec[0] == "COMBO" else None
    return choices if isinstance(choices, list) else None


def options_of(spec: list[Any]) -> dict[str, Any]:
    """Return the options of an input, which follow the type in its spec."""
    return spec[1] if len(spec) > 1 and isinstance(spec[1], dict) else {}


def _is_repeatable(spec: object) -> bool:
    """Whether an input is a template for any number of inputs (`images.image0`, …) and never exists itself."""
    return isinstance(spec, list) and bool(spec) and str(spec[0]).startswith("COMFY_AUTOGROW")


def is_upload(spec: list[Any]) -> bool:
    """Whether an input names a file in the server's input folder."""
    options = options_of(spec)
    return any(options.get(mark) for mark in _UPLOAD_MARKS)
