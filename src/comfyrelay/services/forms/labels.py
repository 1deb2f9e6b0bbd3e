"""Label inputs and nodes with the author's title, the display name, or the words of the class or input name."""

import itertools
import re
import string
from collections import Counter
from collections.abc import Collection, Sequence

from comfyrelay.comfyui.graphs.nodes import title_of
from comfyrelay.services.forms.inputs import GraphInput
from comfyrelay.services.forms.traced_graph import TracedGraph, words_in
from comfyrelay.text import printable, storable

_MAX_LENGTH = 80
# Limits for the length of titles, and for searching the use of an image.
_MAX_TITLE_LENGTH, _MAX_LINKS = 1000, 1000
_WORD_END = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[_\W]+")
_NOISE = re.compile(r"(high|low)[-_ ]?noise", re.IGNORECASE)
_SAMPLER = re.compile(r"sampler(?!select)", re.IGNORECASE)
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
# Generic names of inputs. The label of the node is better.
_GENERIC = frozenset({"value", "string", "text", "int", "float", "number", "boolean", "bool", "any", "switch"})
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
    word.lower(): word
    for word in [
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
    ]
}
# Labels of images by the input that uses them, for graphs with several images.
_USED_AS = {
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


class Labels:
    def __init__(self, traced: TracedGraph, shown: Collection[str]) -> None:
        """`shown` are the nodes whose labels must be unique."""
        self._traced = traced
        samplers = [node_id for node_id in traced.order if _SAMPLER.search(traced.class_of(node_id))]
        self._noises: dict[str, tuple[set[str], list[str]]] = {}
        self._samplers = {node_id: number for number, node_id in enumerate(samplers)}
        self._headings = self._make_unique(
            {node_id: self._custom_title(node_id) or self._default_label(node_id) for node_id in shown}
        )
        self._inside = self._make_unique({node_id: self._inline_label(node_id) for node_id in shown})

    def node(self, node_id: str) -> str:
        """Return the label of a node as a heading."""
        words = self._headings[node_id]
        return words[:1].upper() + words[1:]

    def inside(self, node_id: str) -> str:
        """Return the label of a node within a sentence."""
        return self._inside[node_id]

    def loaded(self, node_id: str) -> str:
        """Return the label of the model that a node loads."""
        words = re.sub(
            r"\b(load|loader)\b", "", self._custom_title(node_id) or self._default_label(node_id), flags=re.IGNORECASE
        )
        shown = " ".join(map(_lower, words.split()))
        return shown[:1].upper() + shown[1:] or "Model"

    def model(self, node_id: str) -> str | None:
        """Return the purpose of a model, if it is known."""
        if self._custom_title(node_id) is not None:
            return self._inside[node_id]
        noise = self._noise(node_id)
        return noise and f"{noise} noise"

    def input(self, input_: GraphInput) -> str:
        if input_.name in _GENERIC:
            return self.node(input_.node_id)
        if input_.name == "clip_name" and "vision" in self._traced.class_of(input_.node_id).lower():
            return "CLIP vision model"
        if input_.display_name is not None and (shown := plain_line(input_.display_name)) and "_" not in shown:
            return shown[:1].upper() + shown[1:]
        name = input_.name.rstrip(string.digits)
        number = input_.name[len(name) :]
        known = _NAMES.get(input_.name) or _NAMES.get(name)
        words = known or _words(name)
        return " ".join(filter(None, (words, number))) or "Value"

    def file(self, input_: GraphInput, *, is_only: bool) -> str:
        """Return the label of a media file: the title of its node, or its use in the graph."""
        kind = str(input_.type).capitalize()
        if (own := self._custom_title(input_.node_id)) is not None:
            return own
        if is_only:
            return kind
        names = (name for _, name in itertools.islice(self._traced.wiring.downstream(input_.node_id), _MAX_LINKS))
        return next((_USED_AS[name] for name in names if name in _USED_AS), kind)

    def _make_unique(self, found: dict[str, str]) -> dict[str, str]:
        counts = Counter(map(str.casefold, found.values()))
        for node_id, words in found.items():
            noise = self._noise(node_id) if counts[words.casefold()] > 1 and not _NOISE.search(words) else None
            if noise is not None:
                found[node_id] = f"{words} ({noise} noise)"
        return dict(zip(found, number_duplicates([*found.values()]), strict=True))

    def _default_label(self, node_id: str) -> str:
        if node_id in self._samplers:
            if (noise := self._noise(node_id)) is not None:
                return f"{noise}-noise sampler"
            place, count = self._samplers[node_id], len(self._samplers)
            return "sampler" if count == 1 else f"{_ORDINALS[place]} sampler" if place < len(_ORDINALS) else "sampler"
        return self._display_name(node_id) or _words(self._traced.class_of(node_id)) or "Node"

    def _inline_label(self, node_id: str) -> str:
        own = self._custom_title(node_id)
        if own is None:
            return " ".join(map(_lower, self._default_label(node_id).split(" "))).removeprefix("load ")
        # The words that the author added to the class name are distinctive, as in "Load Checkpoint - REFINER".
        usual = self._display_name(node_id)
        added = own[len(usual) :].strip(" -:|·()[]") if usual and own.casefold().startswith(usual.casefold()) else ""
        if not _letters(added):
            return own
        added = added.lower() if added.isupper() and len(added) > 4 else added
        return f"{added} sampler" if node_id in self._samplers and "sampler" not in added.lower() else added

    def _custom_title(self, node_id: str) -> str | None:
        """Return the title of a node, unless it is the default title of its class."""
        title = plain_line(title_of(self._traced.graph, node_id)[:_MAX_TITLE_LENGTH].replace("_", " "))
        usual = (self._traced.class_of(node_id), self._display_name(node_id))
        is_usual = _letters(title) in map(_letters, usual)
        return None if is_usual or not _letters(title) else title

    def _display_name(self, node_id: str) -> str:
        definition = self._traced.object_info.get(self._traced.class_of(node_id))
        shown = definition.get("display_name") if isinstance(definition, dict) else None
        return plain_line(shown) if isinstance(shown, str) and shown != self._traced.class_of(node_id) else ""

    def _noise(self, node_id: str) -> str | None:
        """Return `high` or `low` if the names upstream of a node show that it belongs to such a noise level."""
        found: set[str] = set()
        seen: set[str] = set()
        pending = [node_id]
        while pending and len(seen) < 100:
            current = pending.pop()
            if current in seen:
                continue
            seen.add(current)
            if current not in self._noises:
                self._noises[current] = self._noise_levels(current)
            words, sources = self._noises[current]
            found |= words
            pending.extend(sources)
        return found.pop() if len(found) == 1 else None

    def _noise_levels(self, node_id: str) -> tuple[set[str], list[str]]:
        """Return the noise levels that the values of a node name, and the sources of its models."""
        texts = [text for input_ in self._traced.of_node[node_id] if len(text := str(input_.value)) < 300]
        links = self._traced.wiring.links[node_id].items()
        words = {match.lower() for text in texts for match in _NOISE.findall(text)}
        return words, list(dict.fromkeys(source for name, (source, _) in links if "model" in words_in(name)))


def number_duplicates(texts: Sequence[str]) -> list[str]:
    """Append a number to repeated texts."""
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


def plain_line(text: str) -> str:
    """Return the text as one short line."""
    line = " ".join(printable(storable(text)).split())
    return line if len(line) <= _MAX_LENGTH else f"{line[: _MAX_LENGTH - 1]}…"


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text.casefold()))


def _words(name: str) -> str:
    """Split names like `return_with_leftover_noise` and `CLIPTextEncode` into words."""
    found = _WORD_END.split(plain_line(name).replace("KSampler", "Ksampler"))
    words = [_ACRONYMS.get(word.lower(), _lower(word)) for word in found if word]
    return " ".join([words[0][:1].upper() + words[0][1:], *words[1:]]) if words else ""


def _lower(word: str) -> str:
    """Return the word in lower case, unless it has several capitals."""
    return word if sum(map(str.isupper, word)) > 1 else word.lower()
