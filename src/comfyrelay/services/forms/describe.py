"""Describe a graph as a workflow: replace its values with placeholders, and turn them into typed properties."""

import itertools
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from comfyrelay.comfyui.editor.workflow import AppView
from comfyrelay.comfyui.graphs.dynamic_prompts import with_fixed_prompts
from comfyrelay.comfyui.graphs.graph import Graph, check_graph, input_texts
from comfyrelay.comfyui.graphs.nodes import title_of
from comfyrelay.domain.properties import ASSET_TYPES, MAX_PROPERTIES_BYTES, PropertyType, Role
from comfyrelay.services.forms.drafts import PropertyDraft, draft_author_form, draft_properties
from comfyrelay.services.forms.inputs import Position, find_inputs
from comfyrelay.services.forms.labels import Labels, number_duplicates, plain_line
from comfyrelay.services.forms.output import choose_output, find_output_nodes
from comfyrelay.services.forms.traced_graph import TracedGraph
from comfyrelay.services.forms.wiring import Wiring

# Maximum size of all choices of a workflow as JSON, not counting its defaults.
_MAX_CHOICES_BYTES = MAX_PROPERTIES_BYTES // 2
_NO_APP = AppView()
_WORD_END = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z]{2})(?=[A-Z][a-z])")
_PLACEHOLDER = re.compile(r"\{\{([A-Z0-9_]+)\}\}")
_MAX_SLUG_LENGTH = 40
_MAX_SHOWN_BOUND = 2**53
# Titles have no length limit, so the rest is ignored.
_MAX_TITLE_LENGTH = 1000
_MAX_LABEL_LENGTH = 180
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
# Names of model inputs that do not describe the model. The label of the node is used instead.
_NAMELESS = frozenset({"name", "model", "model_name", "file", "model_file"})
# Roles that are returned in `roles`. Other roles may have several properties.
_NAMED_ROLES = frozenset({Role.PROMPT, Role.NEGATIVE_PROMPT, Role.SEED, *ASSET_TYPES})


@dataclass(frozen=True, kw_only=True, slots=True)
class DescribedWorkflow:
    """The fields of a new workflow. `roles` are the property keys by role, such as prompt or seed."""

    graph: Graph
    properties: list[dict[str, Any]]
    roles: dict[str, str]
    output_node_id: str
    output_extension: str
    output_mime_type: str


def describe_graph(
    graph: object, object_info: Mapping[str, Any] | None = None, *, app: AppView = _NO_APP
) -> DescribedWorkflow:
    """Describe a graph in ComfyUI's API format. Raises `GraphError` if it is invalid.

    Filled in with the defaults, the result equals the given graph without nodes that no output needs. Files have no
    default, because each job has its own files. `app` is the author's form and outputs, which take precedence.
    """
    checked, info = check_graph(graph), object_info or {}
    named, savers = _output_nodes(checked, info, app)
    needed = Wiring(checked).dependencies_of(savers)
    kept = {node_id: node for node_id, node in checked.items() if node_id in needed}
    traced = TracedGraph(kept, find_inputs(kept, info, savers=frozenset(savers)), info)
    drafts = draft_author_form(traced, app.fields) or draft_properties(traced)
    keys = _keys(kept, drafts)
    placeholders = _placeholders(kept, keys)
    output = choose_output(kept, named[:1] or savers, info)
    key_of = {draft.inputs[0].position: key for draft, key in zip(drafts, keys, strict=True)}
    node_labels = Labels(traced, _shown(drafts))
    properties = [
        _property(
            draft,
            key=key,
            placeholder=placeholder,
            scaled_from=None if draft.scaled_by is None else key_of[draft.scaled_by],
            label=label,
            group=None if draft.label is not None or draft.is_hidden else node_labels.node(draft.node_id),
        )
        for draft, key, placeholder, label in zip(drafts, keys, placeholders, _labels(drafts, node_labels), strict=True)
    ]
    return DescribedWorkflow(
        graph=_insert_placeholders(kept, drafts, placeholders),
        properties=_limit_choices(properties),
        roles={
            draft.name: key
            for draft, key in zip(drafts, keys, strict=True)
            if draft.name in _NAMED_ROLES and not draft.is_hidden
        },
        output_node_id=output.node_id,
        output_extension=output.extension,
        output_mime_type=output.mime_type,
    )


def _output_nodes(graph: Graph, info: Mapping[str, Any], app: AppView) -> tuple[list[str], list[str]]:
    """Return the author's outputs, and the output nodes that run.

    Only the author's outputs run, unless a field of the form affects only other outputs.
    """
    savers = find_output_nodes(graph, info)
    named = [node_id for node_id in app.outputs if node_id in savers]
    needed = Wiring(graph).dependencies_of(named)
    is_complete = all(node_id in needed for field in app.fields for node_id, _ in field.inputs)
    return named, named if named and is_complete else savers


def _labels(drafts: Sequence[PropertyDraft], node_labels: Labels) -> list[str]:
    """Return the labels of the properties. Ambiguous labels contain the name of the node. The author's labels are
    kept."""
    if any(draft.label is not None for draft in drafts):
        return [plain_line(draft.label or "") or node_labels.input(draft.inputs[0]) for draft in drafts]
    counts_by_type = Counter(draft.inputs[0].type for draft in drafts if draft.role is Role.INPUT)
    labels = [_label(draft, node_labels, is_only=counts_by_type[draft.inputs[0].type] == 1) for draft in drafts]
    counts = Counter(map(str.casefold, labels))
    return number_duplicates(
        [
            label if counts[label.casefold()] == 1 else _add_node_label(draft, label, node_labels)
            for draft, label in zip(drafts, labels, strict=True)
        ]
    )


def _add_node_label(draft: PropertyDraft, label: str, node_labels: Labels) -> str:
    is_global = draft.name is not None and (draft.role in _GLOBAL_ROLES or len(draft.inputs) > 1)
    if is_global or draft.role is Role.INPUT:
        return label
    words = node_labels.model(draft.node_id) if draft.role is Role.MODEL else None
    words = words or node_labels.inside(draft.node_id)
    return f"{_drop_shared_words(words, label)}, {words}"[:_MAX_LABEL_LENGTH] if words else label


def _drop_shared_words(node: str, label: str) -> str:
    """Return the label without leading words that the label of the node also has."""
    known, words = node.casefold().split(), label.split()
    while len(words) > 1 and words[0].casefold() in known:
        del words[0]
    shown = " ".join(words)
    return shown[:1].upper() + shown[1:]


def _label(draft: PropertyDraft, node_labels: Labels, *, is_only: bool) -> str:
    first = draft.inputs[0]
    if draft.scaled_by is not None and len({input_.node_id for input_ in draft.inputs}) > 1:
        return f"Switch to {node_labels.inside(draft.node_id)} at step"[:_MAX_LABEL_LENGTH]
    if draft.role is Role.INPUT:
        return node_labels.file(first, is_only=is_only)
    if draft.role in _LABELS:
        return _LABELS[draft.role]
    if draft.role is Role.MODEL and first.name in _NAMELESS:
        return node_labels.loaded(draft.node_id)
    if draft.side is not None and first.name in _TEXTS:
        return "Further prompt" if draft.side == "positive" else "Further negative prompt"
    return node_labels.input(first)


def _shown(drafts: Sequence[PropertyDraft]) -> list[str]:
    """Return the nodes of the properties. Nodes with properties without a role come first."""
    ordered = sorted(drafts, key=lambda draft: draft.role is not None)
    return list(dict.fromkeys(draft.node_id for draft in ordered))


def _keys(graph: Graph, drafts: Sequence[PropertyDraft]) -> list[str]:
    keys: list[str] = []
    for draft in drafts:
        first = draft.inputs[0]
        title = _slug(title_of(graph, first.node_id)) or _slug(graph[first.node_id]["class_type"]) or "node"
        name = _slug(first.name) or "value"
        # The key contains "seed" even if the seed comes from a generic number node.
        name = "seed" if draft.role is Role.SEED and "seed" not in name.split("_") else name
        key = draft.name or f"{title}_{name}"
        if key in keys:
            # The node id keeps the key stable if other nodes have the same title.
            key = f"{key}_{_slug(first.node_id)}"
        numbered = (f"{key}_{number}" for number in itertools.count(2))
        keys.append(next(name for name in itertools.chain([key], numbered) if name not in keys))
    return keys


def _placeholders(graph: Graph, keys: Sequence[str]) -> list[str]:
    """Return a placeholder for each key that does not occur in the graph."""
    names = [key.upper() for key in keys]
    taken = {name for text in input_texts(graph) for name in _PLACEHOLDER.findall(text)}
    # All placeholders get the same number, because a prompt may contain any number of placeholders.
    numbers = {name.rpartition("_")[2] for name in (*taken, *names)}
    free = next(number for number in itertools.count(2) if str(number) not in numbers)
    return [f"{{{{{name}_{free}}}}}" if name in taken else f"{{{{{name}}}}}" for name in names]


def _insert_placeholders(graph: Graph, drafts: Sequence[PropertyDraft], placeholders: Sequence[str]) -> Graph:
    by_position: dict[Position, str] = {
        input_.position: placeholder
        for draft, placeholder in zip(drafts, placeholders, strict=True)
        for input_ in draft.inputs
    }
    described: Graph = {}
    for node_id, node in graph.items():
        filled = {name: by_position[node_id, name] for name in node["inputs"] if (node_id, name) in by_position}
        # Choices are now drawn in the property, not in the input.
        described[node_id] = {**with_fixed_prompts(node, filled), "inputs": {**node["inputs"], **filled}}
    return described


def _limit_choices(properties: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Turn properties whose choices exceed the size limit into plain inputs, as for a single list that is too long."""
    limited, left = [], _MAX_CHOICES_BYTES
    for fields in properties:
        size = len(json.dumps(fields["choices"])) if "choices" in fields else 0
        if size > left:
            limited.append(_without_choices(fields))
        else:
            limited.append(fields)
            left -= size
    return limited


def _without_choices(fields: Mapping[str, Any]) -> dict[str, Any]:
    value = fields["default_value"]
    guessed = PropertyType.TEXT if isinstance(value, str) else PropertyType.NUMBER
    type_ = PropertyType.BOOLEAN if isinstance(value, bool) else guessed
    return {**{name: field for name, field in fields.items() if name != "choices"}, "type": str(type_)}


def _property(
    draft: PropertyDraft, *, key: str, placeholder: str, scaled_from: str | None, label: str, group: str | None
) -> dict[str, Any]:
    first = draft.inputs[0]
    # Steps are whole numbers even without a node definition.
    is_whole = first.is_whole or (
        isinstance(first.value, int) and (scaled_from is not None or draft.role in _WHOLE_NUMBER_ROLES)
    )
    optional: dict[str, Any] = {
        "choices": list(first.choices) or None,
        "minimum": _bound(first.minimum),
        # Random seeds may need the whole range.
        "maximum": first.maximum if draft.role is Role.SEED else _bound(first.maximum),
        "step": first.step or (1 if is_whole else None),
        "is_whole": is_whole or None,
        "role": None if draft.role is None else str(draft.role),
        "scaled_from": scaled_from,
        "group": group,
        "is_dynamic_prompt": any(input_.is_dynamic_prompt for input_ in draft.inputs) or None,
    }
    return {
        "key": key,
        "type": str(first.type),
        "placeholder": placeholder,
        # Files in the graph are on the author's server. A hidden seed without a default is drawn for each job.
        "default_value": None if first.is_asset or draft.is_hidden else first.value,
        "required": first.is_asset,
        "user_configurable": not draft.is_hidden,
        "is_primary_input": draft.is_primary_input,
        "label": label,
        **{name: value for name, value in optional.items() if value is not None},
    }


def _bound(bound: float | None) -> float | None:
    """Return a bound, unless it is only the largest number of a computer, which means that any number is allowed."""
    return bound if bound is not None and abs(bound) < _MAX_SHOWN_BOUND else None


def _slug(text: str) -> str:
    """Return lower-case words of plain letters and digits, such as `clip_text_encode` for `CLIPTextEncode`."""
    plain = (
        unicodedata.normalize("NFKD", _WORD_END.sub(" ", text[:_MAX_TITLE_LENGTH])).encode("ascii", "ignore").decode()
    )
    return "_".join(re.findall(r"[a-z0-9]+", plain.lower()))[:_MAX_SLUG_LENGTH].strip("_")
