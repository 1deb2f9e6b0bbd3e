"""What the inputs and nodes of a graph are called: in the author's words, else in the server's, else in our own."""

import itertools
import re
import string
from collections import Counter
from collections.abc import Collection, Sequence

from comfyrelay.comfyui.graphs.nodes import title_of
from comfyrelay.services.forms.inputs import GraphInput
from comfyrelay.services.forms.tracing import Tracing, words_in
from comfyrelay.text import printable, storable

_LONGEST = 80
# So much of a title is looked at, and so far is looked for what an image is taken as.
_LONGEST_TEXT, _MOST_WAYS = 1000, 1000
_WORD_END = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[_\W]+")
_NOISE = re.compile(r"(high|low)[-_ ]?noise", re.IGNORECASE)
_SAMPLER = re.compile(r"sampler(?!select)", re.IGNORECASE)
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
# Names that say nothing: the node's own words are better.
_VALUES = frozenset({"value", "string", "text", "int", "float", "number", "boolean", "bool", "any", "switch"})
_NAMES = {
    "seed": "Seed",
    "noise_seed": "Seed",
    "cfg": "CFG",
    "sampler_name": "Sampler",
    "denoise": "Denoise strength",
    "ckpt_name": "Checkpoint",
    "unet_name": "Diffusion model",
    "clip_name": "Text encoder",
    "vae_name": "VAE",
    "lora_name": "LoRA",
    "t5xxl": "Prompt for T5",
    "clip_l": "Prompt for CLIP-L",
    "clip_g": "Prompt for CLIP-G",
    "text_l": "Prompt for CLIP-L",
    "text_g": "Prompt for CLIP-G",
    "control_net_name": "ControlNet",
    "style_model_name": "Style model",
    "strength_model": "Model strength",
    "strength_clip": "Text encoder strength",
    "weight_dtype": "Weight type",
    "fps": "Frames per second",
    "force_rate": "Frames per second",
    "frame_rate": "Frames per second",
    "length": "Length in frames",
    "num_frames": "Length in frames",
    "video_frames": "Length in frames",
    "seconds": "Length in seconds",
    "duration": "Length in seconds",
    "return_with_leftover_noise": "Keep leftover noise",
}
_ACRONYMS = {
    each.lower(): each
    for each in (
        "CFG",
        "VAE",
        "CLIP",
        "LoRA",
        "FPS",
        "CRF",
        "RGB",
        "ID",
        "UNet",
        "T5",
        "ControlNet",
        "HDR",
        "SD3",
        "KSampler",
    )
}
# What an image is to the node that takes it, where a graph has several.
_TAKEN_AS = {
    "start_image": "First frame",
    "first_frame": "First frame",
    "init_image": "First frame",
    "end_image": "Last frame",
    "last_frame": "Last frame",
    "reference_image": "Reference image",
    "ref_image": "Reference image",
    "control_video": "Control video",
    "mask": "Mask",
}


class Wording:
    def __init__(self, tracing: Tracing, shown: Collection[str]) -> None:
        """Of the nodes that are `shown` no two have the same words."""
        self._tracing = tracing
        samplers = [each for each in tracing.order if _SAMPLER.search(tracing.class_of(each))]
        self._noises: dict[str, tuple[set[str], list[str]]] = {}
        self._samplers = {node_id: number for number, node_id in enumerate(samplers)}
        self._headings = self._distinct({each: self._authors(each) or self._ours(each) for each in shown})
        self._inside = self._distinct({each: self._within(each) for each in shown})

    def node(self, node_id: str) -> str:
        """A heading."""
        words = self._headings[node_id]
        return words[:1].upper() + words[1:]

    def inside(self, node_id: str) -> str:
        """The same within a sentence."""
        return self._inside[node_id]

    def loaded(self, node_id: str) -> str:
        words = re.sub(r"\b(load|loader)\b", "", self._authors(node_id) or self._ours(node_id), flags=re.IGNORECASE)
        shown = " ".join(map(_lowered, words.split()))
        return shown[:1].upper() + shown[1:] or "Model"

    def model(self, node_id: str) -> str | None:
        """What a model is for, where that is known."""
        if self._authors(node_id) is not None:
            return self._inside[node_id]
        noise = self._noise(node_id)
        return noise and f"{noise} noise"

    def input(self, each: GraphInput) -> str:
        if each.name in _VALUES:
            return self.node(each.node_id)
        if each.name == "clip_name" and "vision" in self._tracing.class_of(each.node_id).lower():
            return "CLIP vision model"
        if each.words is not None and (shown := _plain(each.words)) and "_" not in shown:
            return shown[:1].upper() + shown[1:]
        name = each.name.rstrip(string.digits)
        number = each.name[len(name) :]
        known = _NAMES.get(each.name) or _NAMES.get(name)
        words = known or _words(name)
        return " ".join(filter(None, (words, number))) or "Value"

    def file(self, each: GraphInput, *, is_alone: bool) -> str:
        """Of an image, a video or a sound: its title, else what it is to the graph."""
        kind = str(each.type).capitalize()
        if (own := self._authors(each.node_id)) is not None:
            return own
        if is_alone:
            return kind
        ways = (name for _, name in itertools.islice(self._tracing.wiring.follows(each.node_id), _MOST_WAYS))
        return next((_TAKEN_AS[name] for name in ways if name in _TAKEN_AS), kind)

    def _distinct(self, found: dict[str, str]) -> dict[str, str]:
        counts = Counter(map(str.casefold, found.values()))
        for node_id, words in found.items():
            noise = self._noise(node_id) if counts[words.casefold()] > 1 and not _NOISE.search(words) else None
            if noise is not None:
                found[node_id] = f"{words} ({noise} noise)"
        return dict(zip(found, numbered([*found.values()]), strict=True))

    def _ours(self, node_id: str) -> str:
        if node_id in self._samplers:
            if (noise := self._noise(node_id)) is not None:
                return f"{noise}-noise sampler"
            place, count = self._samplers[node_id], len(self._samplers)
            return "sampler" if count == 1 else f"{_ORDINALS[place]} sampler" if place < len(_ORDINALS) else "sampler"
        return self._servers(node_id) or _words(self._tracing.class_of(node_id)) or "Node"

    def _within(self, node_id: str) -> str:
        own = self._authors(node_id)
        if own is None:
            return " ".join(map(_lowered, self._ours(node_id).split(" "))).removeprefix("load ")
        # what an author adds to the name of the class is what tells it from others: "Load Checkpoint - REFINER"
        usual = self._servers(node_id)
        added = own[len(usual) :].strip(" -:|·()[]") if usual and own.casefold().startswith(usual.casefold()) else ""
        if not _letters(added):
            return own
        added = added.lower() if added.isupper() and len(added) > 4 else added
        return f"{added} sampler" if node_id in self._samplers and "sampler" not in added.lower() else added

    def _authors(self, node_id: str) -> str | None:
        """The title, where the author has given one: the editor has one for each class."""
        title = _plain(title_of(self._tracing.graph, node_id)[:_LONGEST_TEXT].replace("_", " "))
        usual = (self._tracing.class_of(node_id), self._servers(node_id))
        is_usual = _letters(title) in {_letters(each) for each in usual}
        return None if is_usual or not _letters(title) else title

    def _servers(self, node_id: str) -> str:
        definition = self._tracing.object_info.get(self._tracing.class_of(node_id))
        shown = definition.get("display_name") if isinstance(definition, dict) else None
        return _plain(shown) if isinstance(shown, str) and shown != self._tracing.class_of(node_id) else ""

    def _noise(self, node_id: str) -> str | None:
        """Whether a node belongs to the model for much noise or for little, by the names on its way from the model."""
        found: set[str] = set()
        seen: set[str] = set()
        pending = [node_id]
        while pending and len(seen) < 100:
            each = pending.pop()
            if each in seen:
                continue
            seen.add(each)
            if each not in self._noises:
                self._noises[each] = self._noise_at(each)
            words, sources = self._noises[each]
            found |= words
            pending.extend(sources)
        return found.pop() if len(found) == 1 else None

    def _noise_at(self, node_id: str) -> tuple[set[str], list[str]]:
        """What the values of one node say of noise, and where its models come from."""
        texts = [str(one.value) for one in self._tracing.of_node[node_id] if len(str(one.value)) < 300]
        links = self._tracing.wiring.links[node_id].items()
        words = {match.lower() for text in texts for match in _NOISE.findall(text)}
        return words, list(dict.fromkeys(source for name, (source, _) in links if "model" in words_in(name)))


def numbered(texts: Sequence[str]) -> list[str]:
    """Those that are there before get a number."""
    found: list[str] = []
    used: set[str] = set()
    counts: Counter[str] = Counter()
    for text in texts:
        shown = text
        while shown.casefold() in used:
            counts[text.casefold()] += 1
            shown = f"{text} {counts[text.casefold()] + 1}"
        used.add(shown.casefold())
        found.append(shown)
    return found


def _plain(text: str) -> str:
    """One line, and not a long one."""
    line = " ".join(printable(storable(text)).split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text.casefold()))


def _words(name: str) -> str:
    """`return_with_leftover_noise` and `CLIPTextEncode` as people would write them."""
    found = _WORD_END.split(_plain(name).replace("KSampler", "Ksampler"))
    words = [_ACRONYMS.get(each.lower(), _lowered(each)) for each in found if each]
    return " ".join([words[0][:1].upper() + words[0][1:], *words[1:]]) if words else ""


def _lowered(word: str) -> str:
    """Without its capital, unless it has several."""
    return word if sum(map(str.isupper, word)) > 1 else word.lower()
