"""Decide which inputs of a graph become properties, in which order, and with which role."""

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from comfyrelay.comfyui.editor.workflow import AppField
from comfyrelay.domain.properties import Role
from comfyrelay.services.forms.inputs import GraphInput, Position
from comfyrelay.services.forms.recognise import Recogniser, Side
from comfyrelay.services.forms.sampling import Sampling
from comfyrelay.services.forms.traced_graph import TracedGraph

# Maximum number of properties of a workflow. Other inputs keep their value.
MAX_PROPERTIES = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class PropertyDraft:
    """The inputs of one property. The first property of a role is named after the role."""

    inputs: Sequence[GraphInput]
    role: Role | None = None
    name: str | None = None
    is_primary_input: bool = False
    # The number of steps that a step boundary scales with.
    scaled_by: Position | None = None
    # The side of an additional prompt, such as the prompt of another sampler.
    side: Side | None = None
    # The author's label, if the form is the author's.
    label: str | None = None
    # Not a field of the author's form: each job gets a random seed.
    is_hidden: bool = False

    @property
    def node_id(self) -> str:
        """The node of the property. For a step boundary, it is the sampler that starts there."""
        starts = (
            input_.node_id for input_ in self.inputs if self.scaled_by is not None and input_.name.startswith("start")
        )
        return next(starts, self.inputs[0].node_id)


def draft_properties(traced: TracedGraph) -> list[PropertyDraft]:
    """Return a draft for each property: first inputs with a role, grouped by role, then the others by node in graph
    order."""
    recogniser, sampling = Recogniser(traced), Sampling(traced)
    prompts, negatives = recogniser.prompts()
    seeds, unused_seeds = recogniser.seeds()
    files, sides = recogniser.files(), recogniser.sides()
    groups: list[tuple[Role, Sequence[GraphInput]]] = [
        (Role.PROMPT, prompts),
        (Role.NEGATIVE_PROMPT, negatives),
        *((Role.INPUT, group) for group in files),
        *((Role.SEED, group) for group in seeds),
        *sampling.by_role(),
    ]
    found: list[PropertyDraft] = []
    taken: set[Position] = set()
    names: set[str] = set()
    for role, group in groups:
        if free := _free(group, taken):
            name = _role_name(role, free[0])
            is_first = name not in names and role is not Role.MODEL
            is_primary = role is Role.INPUT and group is files[0]
            found.append(
                PropertyDraft(inputs=free, role=role, name=name if is_first else None, is_primary_input=is_primary)
            )
            names.add(name)
            taken.update(input_.position for input_ in free)
    known = {draft.inputs[0].position for draft in found}
    boundaries = [
        PropertyDraft(inputs=free, scaled_by=boundary.steps.position)
        for boundary in sampling.boundaries()
        if boundary.steps.position in known and (free := _free(boundary.inputs, taken))
    ]
    taken.update(input_.position for boundary in boundaries for input_ in boundary.inputs)
    last = [PropertyDraft(inputs=free, role=Role.SEED) for group in unused_seeds if (free := _free(group, taken))]
    taken.update(input_.position for draft in last for input_ in draft.inputs)
    rest = [
        PropertyDraft(inputs=[input_], side=sides.get(input_.position))
        for node_id in traced.order
        for input_ in traced.of_node[node_id]
        if input_.position not in taken
    ]
    limit = max(0, MAX_PROPERTIES - len(found) - len(boundaries) - len(last))
    order = {node_id: number for number, node_id in enumerate(traced.order)}
    by_node = sorted([*boundaries, *rest[:limit]], key=lambda draft: order[draft.node_id])
    return [*found, *by_node, *last][:MAX_PROPERTIES]


def _free(group: Sequence[GraphInput], taken: Set[Position]) -> list[GraphInput]:
    return [input_ for input_ in group if input_.position not in taken]


def draft_author_form(traced: TracedGraph, fields: Sequence[AppField]) -> list[PropertyDraft]:
    """Return exactly the author's fields in their order. Fields get the recognised roles, and other inputs keep their
    value. If no field is a seed, each job gets random seeds."""
    positions = {position for field in fields for position in field.inputs}
    listed = TracedGraph(
        traced.graph,
        [input_ for input_ in traced.inputs.values() if input_.position in positions],
        traced.object_info,
    )
    # Some roles are recognised only together with inputs that are not fields, such as a width together with a height.
    drafts = [*draft_properties(traced), *(draft for draft in draft_properties(listed) if draft.role is not None)]
    roles = {input_.position: draft.role for draft in drafts for input_ in draft.inputs}
    found: list[PropertyDraft] = []
    names: set[str] = set()
    for field in fields:
        inputs = [listed.inputs[position] for position in field.inputs if position in listed.inputs]
        if not inputs:
            continue
        role = next((roles[input_.position] for input_ in inputs if roles.get(input_.position) is not None), None)
        name = None if role in (None, Role.MODEL) else _role_name(role, inputs[0])
        found.append(
            PropertyDraft(
                inputs=[_limit_to_common_choices(inputs), *inputs[1:]],
                role=role,
                name=None if name in names else name,
                is_primary_input=role is Role.INPUT and not any(draft.role is Role.INPUT for draft in found),
                label=field.label,
            )
        )
        names.update([name] if name is not None else [])
    if found and not any(draft.role is Role.SEED for draft in found):
        seeds, _ = Recogniser(traced).seeds()
        found += [
            PropertyDraft(inputs=group, role=Role.SEED, name=None if number else str(Role.SEED), is_hidden=True)
            for number, group in enumerate(seeds)
        ]
    return found[:MAX_PROPERTIES]


def _role_name(role: Role, first: GraphInput) -> str:
    return str(first.type) if role is Role.INPUT else str(role)


def _limit_to_common_choices(inputs: Sequence[GraphInput]) -> GraphInput:
    """Return the first input with the choices that all inputs of its field have."""
    common = [choice for choice in inputs[0].choices if all(choice in input_.choices for input_ in inputs[1:])]
    return replace(inputs[0], choices=tuple(common)) if common else inputs[0]
