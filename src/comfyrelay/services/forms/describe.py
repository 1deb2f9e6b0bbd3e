"""Describe a graph as a workflow: replace its values by placeholders and make them typed properties."""

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
from comfyrelay.services.forms.inputs import GraphInput, Position, find_inputs
from comfyrelay.services.forms.labels import Labels, number_duplicates
from comfyrelay.services.forms.output import choose_output, find_output_nodes
from comfyrelay.services.forms.recognise import Recogniser, Side
from comfyrelay.services.forms.sampling import Sampling
from comfyrelay.services.forms.traced_graph import TracedGraph
from comfyrelay.services.forms.wiring import Wiring

# The limit of a workflow. Further inputs keep their value.
MAX_PROPERTIES = 200
_WORD_END = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z]{2})(?=[A-Z][a-z])")
_PLACEHOLDER = re.compile(r"\{\{([A-Z0-9_]+)\}\}")
_LONGEST_WORD = 40
# Titles have no length limit; the rest is ignored.
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
# The first property of these roles applies to the whole graph, so its label needs no node.
_GLOBAL_ROLES = frozenset({Role.PROMPT, Role.NEGATIVE_PROMPT, Role.SEED, Role.WIDTH, Role.HEIGHT})
_WHOLE_NUMBER_ROLES = frozenset({Role.SEED, Role.WIDTH, Role.HEIGHT, Role.LENGTH, Role.STEPS})
_TEXTS = frozenset({"text", "value", "string", "prompt"})
# Input names that do not describe a model; the node does.
_NAMELESS = frozenset({"name", "model", "model_name", "file", "model_file"})
# Listed in `roles`; other roles may have several properties.
_NAMED_ROLES = frozenset({Role.PROMPT, Role.NEGATIVE_PROMPT, Role.SEED, *ASSET_TYPES})


@dataclass(frozen=True, kw_only=True, slots=True)
class DescribedWorkflow:
    """Values of a new workflow. `roles` maps roles, such as prompt and seed, to properties."""

    graph: Graph
    properties: list[dict[str, Any]]
    roles: dict[str, str]
    output_node_id: str
    output_extension: str
    output_mime_type: str


def describe_graph(graph: object, object_info: Mapping[str, Any] | None = None) -> DescribedWorkflow:
    """Describe a graph in ComfyUI's API format. Raises `GraphError` if it is invalid.

    Filled with the defaults, the result equals the given graph without the nodes that no output needs, which ComfyUI
    would not run. File properties have no default: each job brings its own files.
    """
    checked, info = check_graph(graph), object_info or {}
    savers = find_output_nodes(checked, info)
    needed = Wiring(checked).dependencies_of(savers)
    kept = {node_id: node for node_id, node in checked.items() if node_id in needed}
    traced = TracedGraph(kept, find_inputs(kept, info, savers=frozenset(savers)), info)
    drafts = _draft_properties(traced)
    keys = _keys(kept, drafts)
    placeholders = _placeholders(kept, keys)
    output = choose_output(kept, savers, info)
    key_of = {each.inputs[0].position: key for each, key in zip(drafts, keys, strict=True)}
    node_labels = Labels(traced, _shown(drafts))
    return DescribedWorkflow(
        graph=_with_placeholders(kept, drafts, placeholders),
        properties=[
            _property(
                each,
                key=key,
                placeholder=placeholder,
                scaled_from=None if each.scaled_by is None else key_of[each.scaled_by],
                label=label,
                group=node_labels.node(each.node_id),
            )
            for each, key, placeholder, label in zip(
                drafts, keys, placeholders, _labels(drafts, node_labels), strict=True
            )
        ],
        roles={each.name: key for each, key in zip(drafts, keys, strict=True) if each.name in _NAMED_ROLES},
        output_node_id=output.node_id,
        output_extension=output.extension,
        output_mime_type=output.mime_type,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _PropertyDraft:
    """The inputs of one property. The first property of a role is named after it."""

    inputs: Sequence[GraphInput]
    role: Role | None = None
    name: str | None = None
    is_primary_input: bool = False
    # the steps that a boundary is scaled by
    scaled_by: Position | None = None
    # for further prompts, such as of another sampler
    side: Side | None = None

    @property
    def node_id(self) -> str:
        """The node that the property belongs to; for a boundary, the sampler that starts there."""
        starts = (
            input_.node_id for input_ in self.inputs if self.scaled_by is not None and input_.name.startswith("start")
        )
        return next(starts, self.inputs[0].node_id)


def _draft_properties(traced: TracedGraph) -> list[_PropertyDraft]:
    """The most used inputs first, grouped by role, then the rest by node in graph order."""
    recogniser, sampling = Recogniser(traced), Sampling(traced)
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
    found: list[_PropertyDraft] = []
    taken: set[Position] = set()
    names: set[str] = set()
    for role, group in groups:
        free = [input_ for input_ in group if input_.position not in taken]
        if free:
            name = str(free[0].type) if role is Role.INPUT else str(role)
            is_first = name not in names and role is not Role.MODEL
            is_primary = role is Role.INPUT and group is files[0]
            found.append(
                _PropertyDraft(inputs=free, role=role, name=name if is_first else None, is_primary_input=is_primary)
            )
            names.add(name)
            taken.update(input_.position for input_ in free)
    known = {each.inputs[0].position for each in found}
    boundaries = [
        _PropertyDraft(inputs=free, scaled_by=boundary.steps.position)
        for boundary in sampling.boundaries()
        if boundary.steps.position in known
        and (free := [input_ for input_ in boundary.inputs if input_.position not in taken])
    ]
    taken.update(input_.position for boundary in boundaries for input_ in boundary.inputs)
    rest = [
        _PropertyDraft(inputs=[input_], side=sides.get(input_.position))
        for node_id in traced.order
        for input_ in traced.of_node[node_id]
        if input_.position not in taken
    ]
    limit = max(0, MAX_PROPERTIES - len(found) - len(boundaries))
    places = {node_id: place for place, node_id in enumerate(traced.order)}
    by_node = sorted([*boundaries, *rest[:limit]], key=lambda each: places[each.node_id])
    return [*found, *by_node][:MAX_PROPERTIES]


def _labels(drafts: Sequence[_PropertyDraft], node_labels: Labels) -> list[str]:
    """Labels of the properties; ambiguous ones get the name of their node."""
    counts_by_type = Counter(draft.inputs[0].type for draft in drafts if draft.role is Role.INPUT)
    labels = [_label(draft, node_labels, is_only=counts_by_type[draft.inputs[0].type] == 1) for draft in drafts]
    counts = Counter(map(str.casefold, labels))
    return number_duplicates(
        [
            label if counts[label.casefold()] == 1 or _is_global(each) else _with_node(each, label, node_labels)
            for each, label in zip(drafts, labels, strict=True)
        ]
    )


def _is_global(each: _PropertyDraft) -> bool:
    return each.name is not None and (each.role in _GLOBAL_ROLES or len(each.inputs) > 1)


def _with_node(each: _PropertyDraft, label: str, node_labels: Labels) -> str:
    if each.role is Role.INPUT:
        return label
    words = node_labels.model(each.node_id) if each.role is Role.MODEL else node_labels.inside(each.node_id)
    return _cut(f"{label}, {words}") if words else label


def _label(each: _PropertyDraft, node_labels: Labels, *, is_only: bool) -> str:
    first = each.inputs[0]
    if each.scaled_by is not None and len({one.node_id for one in each.inputs}) > 1:
        return _cut(f"Switch to {node_labels.inside(each.node_id)} at step")
    if each.role is Role.INPUT:
        return node_labels.file(first, is_only=is_only)
    if each.role in _LABELS:
        return _LABELS[each.role]
    if each.role is Role.MODEL and first.name in _NAMELESS:
        return node_labels.loaded(each.node_id)
    if each.side is not None and first.name in _TEXTS:
        return "Further prompt" if each.side == "positive" else "Further negative prompt"
    return node_labels.input(first)


def _shown(drafts: Sequence[_PropertyDraft]) -> list[str]:
    """Nodes of the properties, nodes with properties without a role first."""
    needed = sorted(drafts, key=lambda draft: draft.role is not None)
    return list(dict.fromkeys(each.node_id for each in needed))


def _cut(label: str) -> str:
    return label[:_LONGEST_LABEL]


def _keys(graph: Graph, drafts: Sequence[_PropertyDraft]) -> list[str]:
    keys: list[str] = []
    for draft in drafts:
        first = draft.inputs[0]
        title = _slug(title_of(graph, first.node_id)) or _slug(graph[first.node_id]["class_type"]) or "node"
        name = _slug(first.name) or "value"
        # the key names the seed even if it comes from a generic number node
        name = "seed" if draft.role is Role.SEED and "seed" not in name.split("_") else name
        key = draft.name or f"{title}_{name}"
        if key in keys:
            # the node id keeps the key stable if other nodes have the same title
            key = f"{key}_{_slug(first.node_id)}"
        keys.append(_unused(key, keys))
    return keys


def _unused(key: str, keys: Sequence[str]) -> str:
    return next(name for name in _numbered(key) if name not in keys)


def _numbered(name: str) -> Iterable[str]:
    yield name
    for number in range(2, MAX_PROPERTIES + 2):
        yield f"{name}_{number}"


def _placeholders(graph: Graph, keys: Sequence[str]) -> list[str]:
    """Texts that do not occur in the graph, so that each is found only where it was inserted."""
    names = [key.upper() for key in keys]
    taken = {name for text in input_texts(graph) for name in _PLACEHOLDER.findall(text)}
    # one number for all of them: a prompt may contain any number of placeholders
    numbers = {name.rpartition("_")[2] for name in (*taken, *names)}
    free = next(number for number in itertools.count(2) if str(number) not in numbers)
    return [f"{{{{{name}_{free}}}}}" if name in taken else f"{{{{{name}}}}}" for name in names]


def _with_placeholders(graph: Graph, drafts: Sequence[_PropertyDraft], placeholders: Sequence[str]) -> Graph:
    by_position: dict[Position, str] = {
        place.position: placeholder
        for one, placeholder in zip(drafts, placeholders, strict=True)
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
    draft: _PropertyDraft, *, key: str, placeholder: str, scaled_from: str | None, label: str, group: str
) -> dict[str, Any]:
    each = draft.inputs[0]
    # steps are whole numbers even without a node definition
    is_whole = each.is_whole or (
        isinstance(each.value, int) and (scaled_from is not None or draft.role in _WHOLE_NUMBER_ROLES)
    )
    known: dict[str, Any] = {
        "choices": list(each.choices) or None,
        "minimum": each.minimum,
        "maximum": each.maximum,
        "step": each.step or (1 if is_whole else None),
        "is_whole": is_whole or None,
        "role": None if draft.role is None else str(draft.role),
        "scaled_from": scaled_from,
    }
    return {
        "key": key,
        "type": str(each.type),
        "placeholder": placeholder,
        # the graph names a file on the server of its author
        "default_value": None if each.is_asset else each.value,
        "required": each.is_asset,
        "user_configurable": True,
        "is_primary_input": draft.is_primary_input,
        "label": label,
        "group": group,
        **{name: value for name, value in known.items() if value is not None},
    }


def _slug(text: str) -> str:
    """Words of plain letters and digits: `CLIPTextEncode` and `CLIP Text Encode` are both `clip_text_encode`."""
    plain = unicodedata.normalize("NFKD", _WORD_END.sub(" ", text[:_LONGEST_TEXT])).encode("ascii", "ignore").decode()
    return "_".join(re.findall(r"[a-z0-9]+", plain.lower()))[:_LONGEST_WORD].strip("_")
