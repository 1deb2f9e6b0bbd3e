"""From a graph to a workflow: its values become typed properties, with placeholders where they stood."""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from comfyrelay.comfy.graphs.graph import Graph, check_graph, input_texts
from comfyrelay.comfy.graphs.nodes import title_of
from comfyrelay.services.forms.inputs import Input, Position, typed_inputs
from comfyrelay.services.forms.output import output_of, savers_in
from comfyrelay.services.forms.recognise import Recogniser
from comfyrelay.services.forms.wiring import Wiring
from comfyrelay.text import natural

# As many as a workflow takes. What comes after them keeps the value that it has.
MOST_PROPERTIES = 200
_WORD_END = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z]{2})(?=[A-Z][a-z])")
_LONGEST_WORD = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class Described:
    """What a workflow is registered with. `roles` says which property is the prompt, the seed and so on."""

    graph: Graph
    properties: list[dict[str, Any]]
    roles: dict[str, str]
    output_node_id: str
    output_extension: str
    output_mime_type: str


def describe(graph: object, object_info: Mapping[str, Any] | None = None) -> Described:
    """Describe a graph in ComfyUI's API format; `GraphError` says what is wrong with it.

    Filled with the defaults, the described graph is the one that was given, without the nodes that no output needs:
    ComfyUI would not run them. Files have no default, since each job brings its own.
    """
    checked, info = check_graph(graph), object_info or {}
    savers = savers_in(checked, info)
    needed = Wiring(checked).needed_by(savers)
    kept = {node_id: node for node_id, node in checked.items() if node_id in needed}
    offered = _offered(kept, typed_inputs(kept, info, savers=savers), info)
    keys = _keys(kept, offered)
    placeholders = _placeholders(kept, keys)
    output = output_of(kept, savers, info)
    return Described(
        graph=_with_placeholders(kept, offered, placeholders),
        properties=[
            _property(each.inputs[0], key=key, placeholder=placeholder, is_primary_input=each.is_primary_input)
            for each, key, placeholder in zip(offered, keys, placeholders, strict=True)
        ],
        roles={each.role: key for each, key in zip(offered, keys, strict=True) if each.role is not None},
        output_node_id=output.node_id,
        output_extension=output.extension,
        output_mime_type=output.mime_type,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Offered:
    """The inputs that become one property."""

    inputs: Sequence[Input]
    role: str | None = None
    is_seed: bool = False
    is_primary_input: bool = False


def _offered(graph: Graph, inputs: Sequence[Input], object_info: Mapping[str, Any]) -> list[_Offered]:
    """What people change most comes first, then the files, then the rest in the order of the graph."""
    recogniser = Recogniser(graph, inputs, object_info)
    prompts, negatives = recogniser.prompts()
    seeds, other_seeds = recogniser.seeds()
    by_role = {"prompt": prompts, "negative_prompt": negatives, "seed": seeds}
    found = [_Offered(inputs=group, role=role) for role, group in by_role.items() if group]
    known: set[str] = set()
    for number, group in enumerate(recogniser.files()):
        kind = str(group[0].type)
        found.append(_Offered(inputs=group, role=None if kind in known else kind, is_primary_input=number == 0))
        known.add(kind)
    found.extend(_Offered(inputs=[each], is_seed=True) for each in other_seeds)
    taken = {place.position for offered in found for place in offered.inputs}
    rest = [each for each in inputs if each.position not in taken]
    rest.sort(key=lambda each: natural(each.node_id))
    found.sort(key=lambda each: each.role is None)
    return [*found, *(_Offered(inputs=[each]) for each in rest)][:MOST_PROPERTIES]


def _keys(graph: Graph, offered: Sequence[_Offered]) -> list[str]:
    keys: list[str] = []
    for each in offered:
        first = each.inputs[0]
        title = _slug(title_of(graph, first.node_id)) or _slug(graph[first.node_id]["class_type"]) or "node"
        name = _slug(first.name) or "value"
        # by its key one tells that it is a seed, also where it comes from a node for any number
        name = "seed" if each.is_seed and "seed" not in name.split("_") else name
        key = each.role or f"{title}_{name}"
        if key in keys:
            # by the node's id, so that another node of this title does not change it
            key = f"{key}_{_slug(first.node_id)}"
        keys.append(_unused(key, keys))
    return keys


def _unused(key: str, keys: Sequence[str]) -> str:
    return next(name for name in _numbered(key) if name not in keys)


def _numbered(name: str) -> Iterable[str]:
    yield name
    for number in range(2, MOST_PROPERTIES + 2):
        yield f"{name}_{number}"


def _placeholders(graph: Graph, keys: Sequence[str]) -> list[str]:
    """Texts that stand nowhere in the graph, so that each is found only where it was put."""
    texts = "\0".join(input_texts(graph))
    found = []
    for key in keys:
        placeholder = f"{{{{{key.upper()}}}}}"
        while placeholder in texts:
            placeholder = f"{{{placeholder}}}"
        found.append(placeholder)
    return found


def _with_placeholders(graph: Graph, offered: Sequence[_Offered], placeholders: Sequence[str]) -> Graph:
    by_position: dict[Position, str] = {
        place.position: placeholder
        for one, placeholder in zip(offered, placeholders, strict=True)
        for place in one.inputs
    }
    return {
        node_id: {
            **node,
            "inputs": {name: by_position.get((node_id, name), value) for name, value in node["inputs"].items()},
        }
        for node_id, node in graph.items()
    }


def _property(each: Input, *, key: str, placeholder: str, is_primary_input: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "key": key,
        "type": str(each.type),
        "placeholder": placeholder,
        # the file that the graph names is on the server of whoever made the graph
        "default_value": None if each.is_asset else each.value,
        "required": each.is_asset,
        "user_configurable": True,
        "is_primary_input": is_primary_input,
    }
    if each.choices:
        fields["choices"] = list(each.choices)
    bounds = {"minimum": each.minimum, "maximum": each.maximum}
    return fields | {name: bound for name, bound in bounds.items() if bound is not None}


def _slug(text: str) -> str:
    """Words of plain letters and digits: `CLIPTextEncode` and `CLIP Text Encode` are both `clip_text_encode`."""
    plain = unicodedata.normalize("NFKD", _WORD_END.sub(" ", text)).encode("ascii", "ignore").decode()
    return "_".join(re.findall(r"[a-z0-9]+", plain.lower()))[:_LONGEST_WORD].strip("_")
