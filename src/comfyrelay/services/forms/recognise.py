"""Recognise the prompt, the negative prompt, the seed and the input files of a graph.

Several inputs can become one property: an encoder that takes the prompt twice, or two samplers with the same seed.
"""

import re
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from comfyrelay.comfyui.graphs.nodes import title_of
from comfyrelay.domain.properties import PropertyType
from comfyrelay.services.forms.inputs import GraphInput, Position, has_type
from comfyrelay.services.forms.traced_graph import TracedGraph, words_in
from comfyrelay.services.forms.wiring import Link

Side = Literal["positive", "negative"]
_OTHER: Mapping[Side, Side] = {"positive": "negative", "negative": "positive"}

# Prompt inputs of samplers without `positive`.
_ONE_SIDED = ("conditioning", "cond", "text_embeds", "hyvid_embeds", "prompt_embeds")
_TEXT_WORDS = frozenset({"text", "prompt", "positive", "negative", "string", "value", "caption", "t5xxl", "llama"})
_TEXT_NAMES = frozenset({"clip_l", "clip_g"})
_PROMPT_WORDS = re.compile(r"positive|negative|cond|text|prompt|string|guider|hyvid|value|t5xxl|llama|clip_[lg]$")
_NO_PROMPT = re.compile(r"model|clip|vae|image|pixels|latent|samples|mask|audio|video|noise|sigmas|sampler|seed")
_PROMPT_TYPES = ("CONDITIONING", "STRING", "GUIDER")
# Names of prompt inputs, most specific first; used if no sampler leads to a text.
_NAMES: Mapping[Side, Sequence[str]] = {
    "positive": ("positive_prompt", "prompt", "positive", "text_positive", "user_prompt", "text"),
    "negative": ("negative_prompt", "negative", "text_negative", "neg_prompt"),
}
# Names of inputs for the first frame, and for auxiliary images.
_FIRST = re.compile(r"start_image|init_image|first_frame|first_image|input_image")
_HELPER = re.compile(
    r"mask|end_image|last_frame|last_image|control|reference|ref_|style|ipadapter|clip_?vision|depth|pose"
)


class Recogniser:
    def __init__(self, traced: TracedGraph) -> None:
        self._traced = traced
        self._graph = traced.graph
        self._wiring = traced.wiring
        self._order = traced.order
        self._inputs = traced.inputs

    def prompts(self) -> tuple[list[GraphInput], list[GraphInput]]:
        """Inputs of the prompt and of the negative prompt."""
        positive, negative = self._upstream_texts("positive"), self._upstream_texts("negative")
        texts = _positions(positive)
        # samplers without a negative prompt often get the prompt again, zeroed out
        negative = [rest for group in negative if (rest := [text for text in group if text.position not in texts])]
        positive = positive or self._find_by_name("positive", without=_positions(negative))
        negative = negative or self._find_by_name("negative", without=_positions(positive))
        return _choose_main(positive), _choose_main(negative)

    def sides(self) -> dict[Position, Side]:
        """Texts that reach a sampler, each with its side."""
        found: dict[Position, Side] = dict.fromkeys(_positions(self._upstream_texts("negative")), "negative")
        return {**found, **dict.fromkeys(_positions(self._upstream_texts("positive")), "positive")}

    def seeds(self) -> tuple[list[GraphInput], list[list[GraphInput]]]:
        """The main seed, from the first sampler that adds noise, with all equal inputs; and the other seeds, grouped by
        value."""
        found: dict[Position, tuple[bool, bool, GraphInput]] = {}
        for node_id in self._order:
            adds_no_noise = self._graph[node_id]["inputs"].get("add_noise") in ("disable", False)
            for name in self._graph[node_id]["inputs"]:
                if "seed" in words_in(name):
                    for number in self._traced.numbers(node_id, name):
                        found.setdefault(number.position, (adds_no_noise, name not in ("seed", "noise_seed"), number))
        ordered = [each for *_, each in sorted(found.values(), key=lambda entry: entry[:2])]
        groups: dict[int, list[GraphInput]] = {}
        for each in ordered:
            groups.setdefault(each.value, []).append(each)
        equal = list(groups.values())
        return (equal[0], equal[1:]) if equal else ([], [])

    def files(self) -> list[list[GraphInput]]:
        """Input files, the main one first. The same file in two nodes is one group."""
        places = {node_id: place for place, node_id in enumerate(self._order)}
        assets = [input_ for input_ in self._inputs.values() if input_.is_asset]
        first, helper = self._before(_FIRST), self._before(_HELPER)

        def rank(each: GraphInput) -> int:
            if each.type is PropertyType.AUDIO:
                return 4
            if each.node_id in first:
                return 0
            if each.node_id in helper:
                return 3
            return 1 if each.type is PropertyType.VIDEO else 2

        assets.sort(key=lambda asset: (rank(asset), places[asset.node_id]))
        groups: dict[tuple[PropertyType, str], list[GraphInput]] = {}
        for asset in assets:
            groups.setdefault((asset.type, asset.value or "/".join(asset.position)), []).append(asset)
        return list(groups.values())

    # prompts

    def _upstream_texts(self, side: Side) -> list[list[GraphInput]]:
        """Texts upstream of each sampler, in sampler order."""
        links = self._wiring.links
        samplers = [links[node_id][side] for node_id in self._order if side in links[node_id]]
        # the last node with such an input guides the sampler; earlier ones only change the prompt
        takers = [node_id for node_id in reversed(self._order) if not self._is_zero_out(node_id)]
        guides = [links[node_id][name] for node_id in takers for name in _ONE_SIDED if name in links[node_id]]
        return self._texts(samplers, side) or self._texts(guides, side)

    def _texts(self, starts: Iterable[Link], side: Side) -> list[list[GraphInput]]:
        """Texts upstream of each link that are not upstream of an earlier one."""
        groups: list[list[GraphInput]] = []
        seen: set[str] = set()
        for start in starts:
            found: list[GraphInput] = []
            pending = deque([start[0]])
            while pending:
                node_id = pending.popleft()
                if node_id not in seen and not self._is_zero_out(node_id):
                    seen.add(node_id)
                    found.extend(self._own_texts(node_id, side))
                    pending.extend(source for source, _ in self._sources(node_id, side))
            groups.append(found)
        return list(filter(None, groups))

    def _is_zero_out(self, node_id: str) -> bool:
        """Whether the node zeroes out the prompt."""
        return "zeroout" in self._graph[node_id]["class_type"].lower()

    def _own_texts(self, node_id: str, side: Side) -> list[GraphInput]:
        found = [
            each for each in self._traced.of_node[node_id] if _is_prompt(each) and _OTHER[side] not in each.name.lower()
        ]
        return [each for each in found if side in each.name.lower()] or found

    def _sources(self, node_id: str, side: Side) -> list[Link]:
        """Links that may carry the prompt to this node, without inputs named after the other side."""
        links = {name: link for name, link in self._wiring.links[node_id].items() if _OTHER[side] not in name.lower()}
        specs = self._traced.specs(node_id)
        matching = [
            name
            for name in links
            if _PROMPT_WORDS.search(name.lower()) or (name in specs and has_type(specs[name], _PROMPT_TYPES))
        ]
        # a switch, for example, may use any input names
        return [links[name] for name in matching or links if matching or not _NO_PROMPT.search(name.lower())]

    def _find_by_name(self, side: Side, *, without: Collection[Position] = ()) -> list[list[GraphInput]]:
        """A text with a typical input name or node title, if no sampler leads to one."""
        texts = [input_ for input_ in self._inputs.values() if _is_prompt(input_) and input_.position not in without]
        titles = {each.position: title_of(self._graph, each.node_id).lower() for each in texts}
        named = [text for name in _NAMES[side] for text in texts if text.name == name]
        titled = [each for each in texts if side in titles[each.position]]
        found = [each for each in (*named, *titled) if _OTHER[side] not in titles[each.position]]
        return [[found[0]]] if found else []

    # files

    def _before(self, words: re.Pattern[str]) -> set[str]:
        """Nodes upstream of inputs whose name or class matches."""

        def is_wanted(node_id: str, name: str) -> bool:
            return words.search(f"{name} {self._traced.class_of(node_id)}".lower()) is not None

        return self._wiring.upstream(is_wanted)


def _is_prompt(each: GraphInput) -> bool:
    words = set(words_in(each.name))
    is_named = each.name in _TEXT_NAMES or bool(words & _TEXT_WORDS)
    return each.type is PropertyType.TEXT and (is_named or each.is_multiline) and "system" not in words


def _positions(groups: Iterable[Iterable[GraphInput]]) -> set[Position]:
    return {text.position for group in groups for text in group}


def _choose_main(groups: Sequence[Sequence[GraphInput]]) -> list[GraphInput]:
    """The longest text of the first sampler, and all equal ones. Others extend it or apply to regions of the image."""
    if not groups:
        return []
    longest = max(groups[0], key=lambda each: len(each.value))
    found = {text.position: text for group in groups for text in group if text.value == longest.value}
    return list(found.values())
