"""What the samplers of a graph are told: size, length, steps and strength, and with which models.

Samplers with the same number of steps get one property, as those with the same seed do. Where one hands over to the
next at a border, the border follows the steps.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from comfyrelay.comfyui.graphs.hash import MODEL_SUFFIXES
from comfyrelay.domain.properties import PropertyType, Role
from comfyrelay.services.forms.inputs import GraphInput, Position
from comfyrelay.services.forms.tracing import Tracing

_STEPS = frozenset({"steps", "num_steps", "num_inference_steps", "sampling_steps", "inference_steps"})
_BORDERS = ("start_at_step", "end_at_step", "start_step", "end_step")
# Those that only a video has, those that other things have, too, and what then says that it is one.
_FRAMES = frozenset({"num_frames", "video_frames", "video_length", "frame_count", "frames_number"})
_MAYBE_FRAMES = frozenset({"length", "frames"})
_SECONDS = frozenset({"seconds", "duration"})
_MOVES = re.compile(r"video|latent|audio|i2v|t2v|animate|frame", re.IGNORECASE)
_RESIZES = re.compile(r"scale|resize|resolution|emptyimage", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Border:
    """Inputs that are one step of a schedule, and the steps of that schedule."""

    inputs: Sequence[GraphInput]
    steps: GraphInput


class Sampling:
    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self._numbers = tracing.numbers
        # the nodes that take steps, and those that are equal to theirs
        self._steps: dict[str, list[GraphInput]] = {}
        self._groups = self._equal_steps()

    def by_role(self) -> Iterator[tuple[Role, list[GraphInput]]]:
        """The inputs of each property, with its role."""
        yield from self._size()
        frames = self._named(_FRAMES, _MAYBE_FRAMES)
        yield from ((Role.LENGTH, group) for group in _equal(number for number in frames if number.value >= 1))
        yield from ((Role.DURATION, [each]) for each in self._direct(_SECONDS) if self._is_moving(each.node_id))
        yield from ((Role.STEPS, group) for group in self._groups)
        yield from ((Role.STRENGTH, [each]) for each in self._direct({"denoise"}) if self._begins_with_something(each))
        yield from ((Role.MODEL, group) for group in self._models())

    def borders(self) -> list[Border]:
        """The steps at which one sampler hands over to the next. What lies behind the last step is no border."""
        graph, links = self._tracing.graph, self._tracing.wiring.links
        all_steps = {number.position for group in self._groups for number in group}
        found: dict[tuple[Position, int], dict[Position, GraphInput]] = {}
        for node_id in self._tracing.order:
            # a schedule may also be split by a node of its own
            maker = links[node_id].get("sigmas", ("", 0))[0]
            taker, names = (node_id, _BORDERS) if node_id in self._steps else (maker, ("step",))
            if taker not in self._steps:
                continue
            steps = self._steps[taker][0]
            present = [name for name in names if name in graph[node_id]["inputs"]]
            for number in (one for name in present for one in self._numbers(node_id, name)):
                if 0 < number.value <= steps.value and number.position not in all_steps:
                    found.setdefault((steps.position, number.value), {})[number.position] = number
        inputs = self._tracing.inputs
        return [Border(inputs=[*group.values()], steps=inputs[steps]) for (steps, _), group in found.items()]

    def _equal_steps(self) -> list[list[GraphInput]]:
        groups: dict[int, dict[Position, GraphInput]] = {}
        takers: dict[str, int] = {}
        for node_id in self._tracing.order:
            for name in self._tracing.graph[node_id]["inputs"]:
                for number in self._numbers(node_id, name) if name in _STEPS else ():
                    if number.value >= 1:
                        groups.setdefault(number.value, {})[number.position] = number
                        takers.setdefault(node_id, number.value)
        found = {value: list(group.values()) for value, group in groups.items()}
        self._steps = {node_id: found[value] for node_id, value in takers.items()}
        return list(found.values())

    # size and length

    def _size(self) -> Iterator[tuple[Role, list[GraphInput]]]:
        """Width and height of what is made, with all that must be equal to them; else of what is made of an image."""
        pairs: list[tuple[str, GraphInput, GraphInput]] = []
        for node_id in self._tracing.order:
            sides = [next(iter(self._numbers(node_id, name)), None) for name in ("width", "height")]
            if sides[0] is not None and sides[1] is not None:
                pairs.append((node_id, sides[0], sides[1]))
        made = [pair for pair in pairs if self._makes_latent(pair[0])]
        resized = [pair for pair in pairs if _RESIZES.search(self._tracing.class_of(pair[0]))]
        if first := next(iter(made or resized), None):
            equal = [
                pair[1:] for pair in pairs if [side.value for side in pair[1:]] == [first[1].value, first[2].value]
            ]
            width = {one.position: one for one, _ in equal}
            height = {one.position: one for _, one in equal if one.position not in width}
            yield Role.WIDTH, list(width.values())
            if height:
                yield Role.HEIGHT, list(height.values())
        yield from ((Role.MEGAPIXELS, [each]) for each in self._direct({"megapixels"}))

    def _makes_latent(self, node_id: str) -> bool:
        definition = self._tracing.object_info.get(self._tracing.class_of(node_id))
        outputs = definition.get("output") if isinstance(definition, dict) else None
        makes_it = isinstance(outputs, list) and "LATENT" in outputs
        name = self._tracing.class_of(node_id).lower()
        takes_it = {"samples", "latent", "latent_image"} & self._tracing.wiring.links[node_id].keys()
        is_called_so = "latent" in name.partition("empty")[2] or "tovideo" in name or "imgtovid" in name
        return (makes_it or is_called_so) and not takes_it

    def _named(self, names: Iterable[str], maybe: Iterable[str]) -> list[GraphInput]:
        found: dict[Position, GraphInput] = {}
        for node_id in self._tracing.order:
            for name in self._tracing.graph[node_id]["inputs"]:
                if name in names or (name in maybe and self._is_moving(node_id)):
                    found.update((number.position, number) for number in self._numbers(node_id, name))
        return list(found.values())

    def _is_moving(self, node_id: str) -> bool:
        return _MOVES.search(self._tracing.class_of(node_id)) is not None

    # strength and models

    def _begins_with_something(self, each: GraphInput) -> bool:
        """Whether a sampler changes a picture: where it makes one of noise, less than all of it makes no sense."""
        source = self._tracing.wiring.links[each.node_id].get("latent_image")
        return each.value < 1 or (source is not None and "encode" in self._tracing.class_of(source[0]).lower())

    def _direct(self, names: Iterable[str]) -> list[GraphInput]:
        wanted = set(names)
        return [each for each in self._in_order() if each.name in wanted and each.type is PropertyType.NUMBER]

    def _models(self) -> list[list[GraphInput]]:
        """The same model in two nodes of a kind is one."""
        groups: dict[tuple[str, str, str], list[GraphInput]] = {}
        for each in self._in_order():
            is_name = each.type in (PropertyType.TEXT, PropertyType.CHOICE) and not each.is_multiline
            if is_name and (value := str(each.value)).lower().endswith(MODEL_SUFFIXES):
                groups.setdefault((self._tracing.class_of(each.node_id), each.name, value), []).append(each)
        return list(groups.values())

    def _in_order(self) -> Iterator[GraphInput]:
        return (input_ for node_id in self._tracing.order for input_ in self._tracing.of_node[node_id])


def _equal(inputs: Iterable[GraphInput]) -> list[list[GraphInput]]:
    groups: dict[object, list[GraphInput]] = {}
    for each in inputs:
        groups.setdefault(each.value, []).append(each)
    return list(groups.values())
