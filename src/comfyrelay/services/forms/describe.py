"""From a graph to a workflow: its values become typed properties, with placeholders where they stood."""

import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from comfyrelay.comfyui.graphs.graph import Graph, check_graph, input_texts
from comfyrelay.comfyui.graphs.nodes import title_of
from comfyrelay.domain.properties import ASSET_TYPES, Role
from comfyrelay.services.forms.inputs import GraphInput, Position, typed_inputs
from comfyrelay.services.forms.output import output_of, savers_in
from comfyrelay.services.forms.recognise import Recogniser, Side
from comfyrelay.services.forms.sampling import Sampling
from comfyrelay.services.forms.tracing import Tracing
from comfyrelay.services.forms.wiring import Wiring
from comfyrelay.services.forms.wording import Wording, numbered

# As many as a workflow takes. What comes after them keeps the value that it has.
MOST_PROPERTIES = 200
_WORD_END = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z]{2})(?=[A-Z][a-z])")
_PLACEHOLDER = re.compile(r"\{\{([A-Z0-9_]+)\}\}")
_LONGEST_WORD = 40
# So much of a title is looked at, which may be as long as one likes.
_LONGEST_TEXT = 1000
_LONGEST_LABEL = 180
_LABELS = {
    Role.PROMPT: "Prompt",
    Role.NEGATIVE_PROMPT: "Negative prompt",
    Role.SEED: "Seed",
    Role.WIDTH: "Width",
    Role.HEIGHT: "Height",
    Role.LENGTH: "Length in frames",
    Role.DURATION: "Length in seconds",
    Role.STEPS: "Steps",
}
# The first of these needs no more words: it is that of the whole graph.
_ONE = frozenset({Role.PROMPT, Role.NEGATIVE_PROMPT, Role.SEED, Role.WIDTH, Role.HEIGHT})
_WHOLE = frozenset({Role.SEED, Role.WIDTH, Role.HEIGHT, Role.LENGTH, Role.STEPS})
_TEXTS = frozenset({"text", "value", "string", "prompt"})
# Of a model these say nothing; what its node loads, does.
_NAMELESS = frozenset({"name", "model", "model_name", "file", "model_file"})
# What `roles` tells of; of others there may be several.
_NAMED_ROLES = frozenset({Role.PROMPT, Role.NEGATIVE_PROMPT, Role.SEED, *ASSET_TYPES})


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
    tracing = Tracing(kept, typed_inputs(kept, info, savers=frozenset(savers)), info)
    offered = _offered(tracing)
    keys = _keys(kept, offered)
    placeholders = _placeholders(kept, keys)
    output = output_of(kept, savers, info)
    key_of = {each.inputs[0].position: key for each, key in zip(offered, keys, strict=True)}
    wording = Wording(tracing, _shown(offered))
    return Described(
        graph=_with_placeholders(kept, offered, placeholders),
        properties=[
            _property(
                each,
                key=key,
                placeholder=placeholder,
                scaled_from=None if each.follows is None else key_of[each.follows],
                label=label,
                group=wording.node(each.node_id),
            )
            for each, key, placeholder, label in zip(
                offered, keys, placeholders, _labels(offered, wording), strict=True
            )
        ],
        roles={each.name: key for each, key in zip(offered, keys, strict=True) if each.name in _NAMED_ROLES},
        output_node_id=output.node_id,
        output_extension=output.extension,
        output_mime_type=output.mime_type,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Offered:
    """The inputs that become one property. The first of a role is called by it."""

    inputs: Sequence[GraphInput]
    role: Role | None = None
    name: str | None = None
    is_primary_input: bool = False
    # the steps that a border keeps to
    follows: Position | None = None
    # the prompt or the negative prompt of a part, or of another sampler
    side: Side | None = None

    @property
    def node_id(self) -> str:
        """Where it belongs: a border to the sampler that begins there."""
        starts = (each.node_id for each in self.inputs if self.follows is not None and each.name.startswith("start"))
        return next(starts, self.inputs[0].node_id)


def _offered(tracing: Tracing) -> list[_Offered]:
    """What people change most comes first, each kind together; then the rest by node, in the order of the graph."""
    recogniser, sampling = Recogniser(tracing), Sampling(tracing)
    prompts, negatives = recogniser.prompts()
    seeds, other_seeds = recogniser.seeds()
    files, sides = recogniser.files(), recogniser.sides()
    groups: list[tuple[Role, Sequence[GraphInput]]] = [
        (Role.PROMPT, prompts),
        (Role.NEGATIVE_PROMPT, negatives),
        *((Role.INPUT, group) for group in files),
        (Role.SEED, seeds),
        *((Role.SEED, group) for group in other_seeds),
        *sampling.by_role(),
    ]
    found: list[_Offered] = []
    taken: set[Position] = set()
    names: set[str] = set()
    for role, group in groups:
        free = [input_ for input_ in group if input_.position not in taken]
        if free:
            name = str(free[0].type) if role is Role.INPUT else str(role)
            is_first = name not in names and role is not Role.MODEL
            is_primary = role is Role.INPUT and group is files[0]
            found.append(_Offered(inputs=free, role=role, name=name if is_first else None, is_primary_input=is_primary))
            names.add(name)
            taken.update(input_.position for input_ in free)
    known = {each.inputs[0].position for each in found}
    borders = [
        _Offered(inputs=free, follows=border.steps.position)
        for border in sampling.borders()
        if border.steps.position in known
        and (free := [input_ for input_ in border.inputs if input_.position not in taken])
    ]
    taken.update(input_.position for border in borders for input_ in border.inputs)
    rest = [
        _Offered(inputs=[input_], side=sides.get(input_.position))
        for node_id in tracing.order
        for input_ in tracing.of_node[node_id]
        if input_.position not in taken
    ]
    room = max(0, MOST_PROPERTIES - len(found) - len(borders))
    places = {node_id: place for place, node_id in enumerate(tracing.order)}
    by_node = sorted([*borders, *rest[:room]], key=lambda each: places[each.node_id])
    return [*found, *by_node][:MOST_PROPERTIES]


def _labels(offered: Sequence[_Offered], wording: Wording) -> list[str]:
    """In words; with those of the node where it would not be clear whose it is."""
    alone = Counter(each.inputs[0].type for each in offered if each.role is Role.INPUT)
    labels = [_label(each, wording, is_alone=alone[each.inputs[0].type] == 1) for each in offered]
    counts = Counter(map(str.casefold, labels))
    return numbered(
        [
            label if counts[label.casefold()] == 1 or _is_clear(each) else _with_node(each, label, wording)
            for each, label in zip(offered, labels, strict=True)
        ]
    )


def _is_clear(each: _Offered) -> bool:
    """Whether it is that of the whole graph."""
    return each.name is not None and (each.role in _ONE or len(each.inputs) > 1)


def _with_node(each: _Offered, label: str, wording: Wording) -> str:
    if each.role is Role.INPUT:
        return label
    words = wording.model(each.node_id) if each.role is Role.MODEL else wording.inside(each.node_id)
    return _cut(f"{label}, {words}") if words else label


def _label(each: _Offered, wording: Wording, *, is_alone: bool) -> str:
    first = each.inputs[0]
    if each.follows is not None and len({one.node_id for one in each.inputs}) > 1:
        return _cut(f"Switch to {wording.inside(each.node_id)} at step")
    if each.role is Role.INPUT:
        return wording.file(first, is_alone=is_alone)
    if each.role in _LABELS:
        return _LABELS[each.role]
    if each.role is Role.MODEL and first.name in _NAMELESS:
        return wording.loaded(each.node_id)
    if each.side is not None and first.name in _TEXTS:
        return "Further prompt" if each.side == "positive" else "Further negative prompt"
    return wording.input(first)


def _shown(offered: Sequence[_Offered]) -> list[str]:
    """Nodes by which properties are told apart, those with settings of their own first."""
    needed = sorted(offered, key=lambda each: each.role is not None)
    return list(dict.fromkeys(each.node_id for each in needed))


def _cut(label: str) -> str:
    return label[:_LONGEST_LABEL]


def _keys(graph: Graph, offered: Sequence[_Offered]) -> list[str]:
    keys: list[str] = []
    for each in offered:
        first = each.inputs[0]
        title = _slug(title_of(graph, first.node_id)) or _slug(graph[first.node_id]["class_type"]) or "node"
        name = _slug(first.name) or "value"
        # by its key one tells that it is a seed, also where it comes from a node for any number
        name = "seed" if each.role is Role.SEED and "seed" not in name.split("_") else name
        key = each.name or f"{title}_{name}"
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
    names = [key.upper() for key in keys]
    taken = {name for text in input_texts(graph) for name in _PLACEHOLDER.findall(text)}
    # one number for all that need it, since there may be as many as one likes to write into a prompt
    numbers = {name.rpartition("_")[2] for name in (*taken, *names)}
    free = next(number for number in itertools.count(2) if str(number) not in numbers)
    return [f"{{{{{name}_{free}}}}}" if name in taken else f"{{{{{name}}}}}" for name in names]


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


def _property(
    offered: _Offered, *, key: str, placeholder: str, scaled_from: str | None, label: str, group: str
) -> dict[str, Any]:
    each = offered.inputs[0]
    # without the server's word: a step is always whole, whatever its node is called
    is_whole = each.is_whole or (isinstance(each.value, int) and (scaled_from is not None or offered.role in _WHOLE))
    known: dict[str, Any] = {
        "choices": list(each.choices) or None,
        "minimum": each.minimum,
        "maximum": each.maximum,
        "step": each.step or (1 if is_whole else None),
        "is_whole": is_whole or None,
        "role": None if offered.role is None else str(offered.role),
        "scaled_from": scaled_from,
    }
    return {
        "key": key,
        "type": str(each.type),
        "placeholder": placeholder,
        # the file that the graph names is on the server of whoever made the graph
        "default_value": None if each.is_asset else each.value,
        "required": each.is_asset,
        "user_configurable": True,
        "is_primary_input": offered.is_primary_input,
        "label": label,
        "group": group,
        **{name: value for name, value in known.items() if value is not None},
    }


def _slug(text: str) -> str:
    """Words of plain letters and digits: `CLIPTextEncode` and `CLIP Text Encode` are both `clip_text_encode`."""
    plain = unicodedata.normalize("NFKD", _WORD_END.sub(" ", text[:_LONGEST_TEXT])).encode("ascii", "ignore").decode()
    return "_".join(re.findall(r"[a-z0-9]+", plain.lower()))[:_LONGEST_WORD].strip("_")
