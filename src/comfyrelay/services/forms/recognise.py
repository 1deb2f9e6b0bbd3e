"""Finding in a graph what people change most: the prompt, the negative prompt, the seed, and the files it begins with.

Several inputs can be one: an encoder that takes the prompt twice, or two samplers with one seed, get one property.
"""

import re
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from comfyrelay.comfyui.graphs.nodes import title_of
from comfyrelay.domain.properties import PropertyType
from comfyrelay.services.forms.inputs import GraphInput, Position, has_type
from comfyrelay.services.forms.tracing import Tracing, words_in
from comfyrelay.services.forms.wiring import Link

Side = Literal["positive", "negative"]
_OTHER: Mapping[Side, Side] = {"positive": "negative", "negative": "positive"}

# Inputs by which a prompt comes to a sampler that has no `positive`.
_ONE_SIDED = ("conditioning", "cond", "text_embeds", "hyvid_embeds", "prompt_embeds")
_TEXT_WORDS = frozenset({"text", "prompt", "positive", "negative", "string", "value", "caption", "t5xxl", "llama"})
_TEXT_NAMES = frozenset({"clip_l", "clip_g"})
_PROMPT_WORDS = re.compile(r"positive|negative|cond|text|prompt|string|guider|hyvid|value|t5xxl|llama|clip_[lg]$")
_NO_PROMPT = re.compile(r"model|clip|vae|image|pixels|latent|samples|mask|audio|video|noise|sigmas|sampler|seed")
_PROMPT_TYPES = ("CONDITIONING", "STRING", "GUIDER")
# Where no sampler leads to a text: the names that nodes give to prompts, most telling first.
_NAMES: Mapping[Side, Sequence[str]] = {
    "positive": ("positive_prompt", "prompt", "positive", "text_positive", "user_prompt", "text"),
    "negative": ("negative_prompt", "negative", "text_negative", "neg_prompt"),
}
# What says of an image that a video begins with it, and what that it only helps.
_FIRST = re.compile(r"start_image|init_image|first_frame|first_image|input_image")
_HELPER = re.compile(
    r"mask|end_image|last_frame|last_image|control|reference|ref_|style|ipadapter|clip_?vision|depth|pose"
)


class Recogniser:
    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self._graph = tracing.graph
        self._wiring = tracing.wiring
        self._order = tracing.order
        self._inputs = tracing.inputs

    def prompts(self) -> tuple[list[GraphInput], list[GraphInput]]:
        """The inputs that are the prompt, and those that are the negative prompt."""
        positive, negative = self._led_to("positive"), self._led_to("negative")
        texts = _positions(positive)
        # a sampler without a negative prompt is often given the prompt again, emptied
        negative = [rest for group in negative if (rest := [text for text in group if text.position not in texts])]
        positive = positive or self._named("positive", without=_positions(negative))
        negative = negative or self._named("negative", without=_positions(positive))
        return _chosen(positive), _chosen(negative)

    def sides(self) -> dict[Position, Side]:
        """The texts that come to a sampler, each with the side from which it does."""
        found: dict[Position, Side] = dict.fromkeys(_positions(self._led_to("negative")), "negative")
        return {**found, **dict.fromkeys(_positions(self._led_to("positive")), "positive")}

    def seeds(self) -> tuple[list[GraphInput], list[list[GraphInput]]]:
        """The inputs that are the seed: that of the first sampler which makes noise, and those equal to it. And the
        other seeds, equal ones together."""
        found: dict[Position, tuple[bool, bool, GraphInput]] = {}
        for node_id in self._order:
            makes_none = self._graph[node_id]["inputs"].get("add_noise") in ("disable", False)
            for name in self._graph[node_id]["inputs"]:
                if "seed" in words_in(name):
                    for number in self._tracing.numbers(node_id, name):
                        found.setdefault(number.position, (makes_none, name not in ("seed", "noise_seed"), number))
        ordered = [each for *_, each in sorted(found.values(), key=lambda entry: entry[:2])]
        groups: dict[int, list[GraphInput]] = {}
        for each in ordered:
            groups.setdefault(each.value, []).append(each)
        equal = list(groups.values())
        return (equal[0], equal[1:]) if equal else ([], [])

    def files(self) -> list[list[GraphInput]]:
        """The files, the one that the graph begins with first. The same file in two nodes is one."""
        places = {node_id: place for place, node_id in enumerate(self._order)}
        assets = [each for each in self._inputs.values() if each.is_asset]
        first, helper = self._before(_FIRST), self._before(_HELPER)

        def distance(each: GraphInput) -> int:
            """How far a file is from being the one that the graph is about."""
            if each.type is PropertyType.AUDIO:
                return 4
            if each.node_id in first:
                return 0
            if each.node_id in helper:
                return 3
            return 1 if each.type is PropertyType.VIDEO else 2

        assets.sort(key=lambda each: (distance(each), places[each.node_id]))
        groups: dict[tuple[PropertyType, str], list[GraphInput]] = {}
        for each in assets:
            groups.setdefault((each.type, each.value or "/".join(each.position)), []).append(each)
        return list(groups.values())

    # prompts

    def _led_to(self, side: Side) -> list[list[GraphInput]]:
        """The texts from which something comes to each sampler, those of the first sampler first."""
        links = self._wiring.links
        samplers = [links[node_id][side] for node_id in self._order if side in links[node_id]]
        # the last node that takes one prompt is the sampler's guide; those before it change the prompt
        takers = [node_id for node_id in reversed(self._order) if not self._empties(node_id)]
        guides = [links[node_id][name] for node_id in takers for name in _ONE_SIDED if name in links[node_id]]
        return self._texts(samplers, side) or self._texts(guides, side)

    def _texts(self, starts: Iterable[Link], side: Side) -> list[list[GraphInput]]:
        """The texts behind each of these links, as far as they are not behind an earlier one."""
        groups: list[list[GraphInput]] = []
        seen: set[str] = set()
        for start in starts:
            found: list[GraphInput] = []
            pending = deque([start[0]])
            while pending:
                node_id = pending.popleft()
                if node_id not in seen and not self._empties(node_id):
                    seen.add(node_id)
                    found.extend(self._own_texts(node_id, side))
                    pending.extend(source for source, _ in self._sources(node_id, side))
            groups.append(found)
        return list(filter(None, groups))

    def _empties(self, node_id: str) -> bool:
        """Whether nothing of a prompt is left after this node, so that its text means nothing."""
        return "zeroout" in self._graph[node_id]["class_type"].lower()

    def _own_texts(self, node_id: str, side: Side) -> list[GraphInput]:
        found = [
            each
            for each in self._tracing.of_node[node_id]
            if _is_prompt(each) and _OTHER[side] not in each.name.lower()
        ]
        return [each for each in found if side in each.name.lower()] or found

    def _sources(self, node_id: str, side: Side) -> list[Link]:
        """Where a prompt may come from to this node; what is called by the other side's name is not asked."""
        links = {name: link for name, link in self._wiring.links[node_id].items() if _OTHER[side] not in name.lower()}
        specs = self._tracing.specs(node_id)
        telling = [
            name
            for name in links
            if _PROMPT_WORDS.search(name.lower()) or (name in specs and has_type(specs[name], _PROMPT_TYPES))
        ]
        # a switch, for one, calls its inputs anything
        return [links[name] for name in telling or links if telling or not _NO_PROMPT.search(name.lower())]

    def _named(self, side: Side, *, without: Collection[Position] = ()) -> list[list[GraphInput]]:
        """Where no sampler leads to a text: one with a telling name, or one whose node has a telling title."""
        texts = [each for each in self._inputs.values() if _is_prompt(each) and each.position not in without]
        titles = {each.position: title_of(self._graph, each.node_id).lower() for each in texts}
        named = [text for name in _NAMES[side] for text in texts if text.name == name]
        titled = [each for each in texts if side in titles[each.position]]
        found = [each for each in (*named, *titled) if _OTHER[side] not in titles[each.position]]
        return [[found[0]]] if found else []

    # files

    def _before(self, words: re.Pattern[str]) -> set[str]:
        """The nodes from which a file goes where the name of an input or of a node has one of these words."""

        def is_wanted(node_id: str, name: str) -> bool:
            return words.search(f"{name} {self._tracing.class_of(node_id)}".lower()) is not None

        return self._wiring.before(is_wanted)


def _is_prompt(each: GraphInput) -> bool:
    words = set(words_in(each.name))
    is_named = each.name in _TEXT_NAMES or bool(words & _TEXT_WORDS)
    return each.type is PropertyType.TEXT and (is_named or each.is_multiline) and "system" not in words


def _positions(groups: Iterable[Iterable[GraphInput]]) -> set[Position]:
    return {text.position for group in groups for text in group}


def _chosen(groups: Sequence[Sequence[GraphInput]]) -> list[GraphInput]:
    """The longest text of the first sampler, and all equal to it; others add to it, or are for parts of the picture."""
    if not groups:
        return []
    longest = max(groups[0], key=lambda each: len(each.value))
    found = {text.position: text for group in groups for text in group if text.value == longest.value}
    return list(found.values())
