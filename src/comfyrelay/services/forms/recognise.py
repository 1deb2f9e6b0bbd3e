"""Recognise the prompt, the negative prompt, the seed and the input files of a graph.

Several inputs can become one property, such as the seeds of two samplers.
"""

import re
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from comfyrelay.comfyui.graphs.nodes import title_of
from comfyrelay.domain.properties import PropertyType
from comfyrelay.services.forms.inputs import GraphInput, Position, has_type
from comfyrelay.services.forms.traced_graph import TracedGraph, group_by_value, words_in
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
# Names of prompt inputs, most specific first. They are used if no text reaches a sampler.
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
        """Return the inputs of the prompt and of the negative prompt."""
        positive, negative = self._upstream_texts("positive"), self._upstream_texts("negative")
        texts = _positions(positive)
        # Samplers without a negative prompt often get a zeroed-out copy of the prompt.
        negative = [rest for group in negative if (rest := [text for text in group if text.position not in texts])]
        positive = positive or self._find_by_name("positive", without=_positions(negative))
        negative = negative or self._find_by_name("negative", without=_positions(positive))
        return _choose_main(positive), _choose_main(negative)

    def sides(self) -> dict[Position, Side]:
        """Return the side of each text that reaches a sampler."""
        found: dict[Position, Side] = dict.fromkeys(_positions(self._upstream_texts("negative")), "negative")
        return {**found, **dict.fromkeys(_positions(self._upstream_texts("positive")), "positive")}

    def seeds(self) -> tuple[list[list[GraphInput]], list[list[GraphInput]]]:
        """Return the inputs of the seeds, grouped by value, and the inputs of seeds without effect, whose samplers add
        no noise. The first seed is the main seed: the seed of the first sampler that adds noise."""
        found: dict[Position, tuple[bool, bool, GraphInput]] = {}
        for node_id in self._order:
            adds_no_noise = self._graph[node_id]["inputs"].get("add_noise") in ("disable", False)
            for name in self._graph[node_id]["inputs"]:
                if "seed" in words_in(name):
                    for number in self._traced.numbers(node_id, name):
                        found.setdefault(number.position, (adds_no_noise, name not in ("seed", "noise_seed"), number))
        ordered = sorted(found.values(), key=lambda entry: entry[:2])
        used = group_by_value(number for is_unused, _, number in ordered if not is_unused)
        shared = {number.value for group in used for number in group}
        # A seed without effect joins the group of an effective seed with the same value.
        for group in used:
            group.extend(number for is_unused, _, number in ordered if is_unused and number.value == group[0].value)
        unused = group_by_value(number for is_unused, _, number in ordered if is_unused and number.value not in shared)
        return (used, unused) if used else (unused, [])

    def files(self) -> list[list[GraphInput]]:
        """Return the input files, the main file first. The same file in two nodes is one group."""
        order = {node_id: number for number, node_id in enumerate(self._order)}
        assets = [input_ for input_ in self._inputs.values() if input_.is_asset]
        first, helper = self._before(_FIRST), self._before(_HELPER)

        def rank(asset: GraphInput) -> int:
            if asset.type is PropertyType.AUDIO:
                return 4
            if asset.node_id in first:
                return 0
            if asset.node_id in helper:
                return 3
            return 1 if asset.type is PropertyType.VIDEO else 2

        assets.sort(key=lambda asset: (rank(asset), order[asset.node_id]))
        groups: dict[tuple[PropertyType, str], list[GraphInput]] = {}
        for asset in assets:
            groups.setdefault((asset.type, asset.value or "/".join(asset.position)), []).append(asset)
        return list(groups.values())

    def _upstream_texts(self, side: Side) -> list[list[GraphInput]]:
        """Return the texts upstream of each sampler, in the order of the samplers."""
        links = self._wiring.links
        samplers = [links[node_id][side] for node_id in self._order if side in links[node_id]]
        # The last node with such an input guides the sampler. Earlier nodes only change the prompt.
        takers = [node_id for node_id in reversed(self._order) if not self._is_zero_out(node_id)]
        guides = [links[node_id][name] for node_id in takers for name in _ONE_SIDED if name in links[node_id]]
        return self._texts(samplers, side) or self._texts(guides, side)

    def _texts(self, starts: Iterable[Link], side: Side) -> list[list[GraphInput]]:
        """Return, for each link, the texts upstream that are not upstream of an earlier link."""
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
        """Return whether a node zeroes out the prompt."""
        return "zeroout" in self._graph[node_id]["class_type"].lower()

    def _own_texts(self, node_id: str, side: Side) -> list[GraphInput]:
        prompts = filter(_is_prompt, self._traced.of_node[node_id])
        found = [text for text in prompts if _OTHER[side] not in text.name.lower()]
        return [text for text in found if side in text.name.lower()] or found

    def _sources(self, node_id: str, side: Side) -> list[Link]:
        """Return the links that may carry the prompt to this node. Inputs named after the other side are omitted."""
        links = {name: link for name, link in self._wiring.links[node_id].items() if _OTHER[side] not in name.lower()}
        specs = self._traced.specs(node_id)
        matching = [
            name
            for name in links
            if _PROMPT_WORDS.search(name.lower()) or (name in specs and has_type(specs[name], _PROMPT_TYPES))
        ]
        # The inputs of a switch, for example, may have any names.
        return [links[name] for name in matching or links if matching or not _NO_PROMPT.search(name.lower())]

    def _find_by_name(self, side: Side, *, without: Collection[Position] = ()) -> list[list[GraphInput]]:
        """Find a text with a typical input name or node title."""
        texts = [input_ for input_ in self._inputs.values() if _is_prompt(input_) and input_.position not in without]
        titles = {text.position: title_of(self._graph, text.node_id).lower() for text in texts}
        named = [text for name in _NAMES[side] for text in texts if text.name == name]
        titled = [text for text in texts if side in titles[text.position]]
        found = [text for text in (*named, *titled) if _OTHER[side] not in titles[text.position]]
        return [[found[0]]] if found else []

    def _before(self, words: re.Pattern[str]) -> set[str]:
        """Return the nodes upstream of inputs whose name or class matches."""

        def is_wanted(node_id: str, name: str) -> bool:
            return words.search(f"{name} {self._traced.class_of(node_id)}".lower()) is not None

        return self._wiring.upstream(is_wanted)


def _is_prompt(input_: GraphInput) -> bool:
    words = set(words_in(input_.name))
    is_named = input_.name in _TEXT_NAMES or bool(words & _TEXT_WORDS)
    return input_.type is PropertyType.TEXT and (is_named or input_.is_multiline) and "system" not in words


def _positions(groups: Iterable[Iterable[GraphInput]]) -> set[Position]:
    return {text.position for group in groups for text in group}


def _choose_main(groups: Sequence[Sequence[GraphInput]]) -> list[GraphInput]:
    """Return the longest text of the first sampler, and all equal texts. The other texts extend it or apply to regions
    of the image."""
    if not groups:
        return []
    longest = max(groups[0], key=lambda text: len(text.value))
    found = {text.position: text for group in groups for text in group if text.value == longest.value}
    return list(found.values())
