"""Recognise the size, length, steps, strength and models of the samplers of a graph.

Samplers with the same number of steps share one property. Step boundaries between two samplers scale with the steps.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from comfyrelay.comfyui.graphs.hash import MODEL_SUFFIXES
from comfyrelay.domain.properties import PropertyType, Role
from comfyrelay.services.forms.inputs import GraphInput, Position
from comfyrelay.services.forms.traced_graph import TracedGraph, group_by_value

_STEPS = frozenset({"steps", "num_steps", "num_inference_steps", "sampling_steps", "inference_steps"})
_BOUNDARY_INPUTS = ("start_at_step", "end_at_step", "start_step", "end_step")
# Input names of videos, input names of videos and other things, and class names of videos.
_FRAMES = frozenset({"num_frames", "video_frames", "video_length", "frame_count", "frames_number"})
_MAYBE_FRAMES = frozenset({"length", "frames"})
_SECONDS = frozenset({"seconds", "duration"})
_VIDEO_CLASS = re.compile(r"video|latent|audio|i2v|t2v|animate|frame", re.IGNORECASE)
_RESIZES = re.compile(r"scale|resize|resolution|emptyimage", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepBoundary:
    """The inputs with the same boundary step of a schedule, and the input with the number of steps of the schedule."""

    inputs: Sequence[GraphInput]
    steps: GraphInput


class Sampling:
    def __init__(self, traced: TracedGraph) -> None:
        self._traced = traced
        self._numbers = traced.numbers
        # By node with steps: all inputs with the same number of steps.
        self._steps: dict[str, list[GraphInput]] = {}
        self._groups = self._equal_steps()

    def by_role(self) -> Iterator[tuple[Role, list[GraphInput]]]:
        """Yield groups of inputs with their role."""
        yield from self._size()
        frames = self._inputs_named(_FRAMES, _MAYBE_FRAMES)
        yield from ((Role.LENGTH, group) for group in group_by_value(number for number in frames if number.value >= 1))
        yield from ((Role.DURATION, [input_]) for input_ in self._direct(_SECONDS) if self._is_video(input_.node_id))
        yield from ((Role.STEPS, group) for group in self._groups)
        yield from (
            (Role.STRENGTH, [input_]) for input_ in self._direct({"denoise"}) if self._starts_from_image(input_)
        )
        yield from ((Role.MODEL, group) for group in self._models())

    def boundaries(self) -> list[StepBoundary]:
        """Return the steps at which the next sampler continues. Values after the last step are not boundaries."""
        graph, links = self._traced.graph, self._traced.wiring.links
        all_steps = {number.position for group in self._groups for number in group}
        found: dict[tuple[Position, int], dict[Position, GraphInput]] = {}
        for node_id in self._traced.order:
            # A separate node may split the schedule.
            maker = links[node_id].get("sigmas", ("", 0))[0]
            taker, names = (node_id, _BOUNDARY_INPUTS) if node_id in self._steps else (maker, ("step",))
            if taker not in self._steps:
                continue
            steps = self._steps[taker][0]
            present = [name for name in names if name in graph[node_id]["inputs"]]
            for number in chain.from_iterable(self._numbers(node_id, name) for name in present):
                if 0 < number.value <= steps.value and number.position not in all_steps:
                    found.setdefault((steps.position, number.value), {})[number.position] = number
        inputs = self._traced.inputs
        return [StepBoundary(inputs=[*group.values()], steps=inputs[steps]) for (steps, _), group in found.items()]

    def _equal_steps(self) -> list[list[GraphInput]]:
        groups: dict[int, dict[Position, GraphInput]] = {}
        takers: dict[str, int] = {}
        for node_id in self._traced.order:
            for name in self._traced.graph[node_id]["inputs"]:
                for number in self._numbers(node_id, name) if name in _STEPS else ():
                    if number.value >= 1:
                        groups.setdefault(number.value, {})[number.position] = number
                        takers.setdefault(node_id, number.value)
        found = {value: list(group.values()) for value, group in groups.items()}
        self._steps = {node_id: found[value] for node_id, value in takers.items()}
        return list(found.values())

    def _size(self) -> Iterator[tuple[Role, list[GraphInput]]]:
        """Yield the width and height of the empty latent or of a resized image, with all equal inputs."""
        pairs: list[tuple[str, GraphInput, GraphInput]] = []
        for node_id in self._traced.order:
            sides = [next(iter(self._numbers(node_id, name)), None) for name in ("width", "height")]
            if sides[0] is not None and sides[1] is not None:
                pairs.append((node_id, sides[0], sides[1]))
        made = [pair for pair in pairs if self._makes_latent(pair[0])]
        resized = [pair for pair in pairs if _RESIZES.search(self._traced.class_of(pair[0]))]
        if first := next(iter(made or resized), None):
            equal = [
                pair[1:] for pair in pairs if [side.value for side in pair[1:]] == [first[1].value, first[2].value]
            ]
            width = {number.position: number for number, _ in equal}
            height = {number.position: number for _, number in equal if number.position not in width}
            yield Role.WIDTH, list(width.values())
            if height:
                yield Role.HEIGHT, list(height.values())
        yield from ((Role.MEGAPIXELS, [input_]) for input_ in self._direct({"megapixels"}))

    def _makes_latent(self, node_id: str) -> bool:
        definition = self._traced.object_info.get(self._traced.class_of(node_id))
        outputs = definition.get("output") if isinstance(definition, dict) else None
        makes_it = isinstance(outputs, list) and "LATENT" in outputs
        name = self._traced.class_of(node_id).lower()
        takes_it = {"samples", "latent", "latent_image"} & self._traced.wiring.links[node_id].keys()
        is_named_so = "latent" in name.partition("empty")[2] or "tovideo" in name or "imgtovid" in name
        return (makes_it or is_named_so) and not takes_it

    def _inputs_named(self, names: Iterable[str], maybe: Iterable[str]) -> list[GraphInput]:
        found: dict[Position, GraphInput] = {}
        for node_id in self._traced.order:
            for name in self._traced.graph[node_id]["inputs"]:
                if name in names or (name in maybe and self._is_video(node_id)):
                    found.update((number.position, number) for number in self._numbers(node_id, name))
        return list(found.values())

    def _is_video(self, node_id: str) -> bool:
        return _VIDEO_CLASS.search(self._traced.class_of(node_id)) is not None

    def _starts_from_image(self, strength: GraphInput) -> bool:
        """Return whether a sampler starts from an image. If it starts from noise, only full strength makes sense."""
        source = self._traced.wiring.links[strength.node_id].get("latent_image")
        return strength.value < 1 or (source is not None and "encode" in self._traced.class_of(source[0]).lower())

    def _direct(self, names: Iterable[str]) -> list[GraphInput]:
        wanted = set(names)
        return [input_ for input_ in self._in_order() if input_.name in wanted and input_.type is PropertyType.NUMBER]

    def _models(self) -> list[list[GraphInput]]:
        """Return the models. The same model in two nodes of a class is one group."""
        groups: dict[tuple[str, str, str], list[GraphInput]] = {}
        for input_ in self._in_order():
            is_name = input_.type in (PropertyType.TEXT, PropertyType.CHOICE) and not input_.is_multiline
            if is_name and (value := str(input_.value)).lower().endswith(MODEL_SUFFIXES):
                groups.setdefault((self._traced.class_of(input_.node_id), input_.name, value), []).append(input_)
        return list(groups.values())

    def _in_order(self) -> Iterator[GraphInput]:
        return (input_ for node_id in self._traced.order for input_ in self._traced.of_node[node_id])
