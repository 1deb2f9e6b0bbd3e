r"""Prompts with choices: `{a|b}` chooses one of its options.

Options may contain choices. A brace that is never closed includes the rest of the prompt. `\{`, `\}`, `\|` and `\__`
are plain characters. `__name__` chooses a line of a file, if the caller provides files.

The editor makes new choices for each run. A converted graph lists such prompts in `_meta`, which ComfyUI ignores.
"""

import itertools
import random
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.errors import InvalidInput

DYNAMIC_PROMPTS = "dynamic_prompts"
_RANDOM = random.SystemRandom()
# Deepest nesting of braces.
MAX_DEPTH = 10
_FILE = r"__(?P<file>[A-Za-z0-9-]+(?:[_/][A-Za-z0-9-]+)*)__"
_TOKEN = re.compile(rf"\\(?P<escaped>[{{}}|]|__)|(?P<sign>[{{}}|])|{_FILE}|(?P<text>[^\\{{}}|_]+|.)", re.DOTALL)


@dataclass(frozen=True)
class Choice:
    """Alternatives, of which one is chosen."""

    options: Sequence["Parts"]

    def pick(self, rng: random.Random) -> str:
        return _pick(rng.choice(self.options), rng)

    @cached_property
    def count(self) -> int:
        # Cached, because many lines may name the same file, whose choice is then shared.
        return sum(map(_count, self.options))

    def all(self) -> Iterator[str]:
        return itertools.chain.from_iterable(map(_all, self.options))


Parts = Sequence[str | Choice]
_Levels = list[list[list[str | Choice]]]


def _pick(parts: Parts, rng: random.Random) -> str:
    return "".join(part if isinstance(part, str) else part.pick(rng) for part in parts)


def _count(parts: Parts) -> int:
    total = 1
    for part in parts:
        total *= 1 if isinstance(part, str) else part.count
    return total


def _all(parts: Parts) -> Iterator[str]:
    lists = [[part] if isinstance(part, str) else list(part.all()) for part in parts]
    return map("".join, itertools.product(*lists))


def _close(levels: _Levels, *, end: str) -> None:
    """Add the innermost level to its parent: as a choice, or as plain text if it has only one option."""
    options = levels.pop()
    levels[-1][-1] += [Choice(options)] if len(options) > 1 else ["{", *options[0], end]


@dataclass(frozen=True, slots=True)
class Template:
    """A prompt with wildcards."""

    parts: Parts

    @property
    def count(self) -> int:
        """The number of combinations."""
        return _count(self.parts)

    def pick(self, rng: random.Random) -> str:
        return _pick(self.parts, rng)

    def all(self) -> list[str]:
        return list(_all(self.parts))


def parse_template(text: str, *, read_file: Callable[[str], Choice] | None = None) -> Template:
    """Parse a prompt. Braces without `|` are not changed, because other syntaxes use them.

    Raises `InvalidInput` if braces are nested too deep.
    """
    # Each level has the options read so far. The last option is still open.
    levels: _Levels = [[[]]]
    for token in _TOKEN.finditer(text):
        open_parts = levels[-1][-1]
        if (name := token["file"]) and read_file is not None:
            open_parts.append(read_file(name))
        elif token["sign"] == "{":
            if len(levels) > MAX_DEPTH:
                raise InvalidInput(f"Braces are nested more than {MAX_DEPTH} deep.")
            levels.append([[]])
        elif token["sign"] == "|" and len(levels) > 1:
            levels[-1].append([])
        elif token["sign"] == "}" and len(levels) > 1:
            _close(levels, end="}")
        else:
            open_parts.append(token["escaped"] or token[0])
    # As in the editor, a brace that is never closed includes the rest.
    while len(levels) > 1:
        _close(levels, end="")
    return Template(levels[0][0])


def draw_prompt(text: str) -> str:
    """Return a prompt with a random option for each choice. Raises `InvalidInput` if braces are nested too deep."""
    return parse_template(text).pick(_RANDOM)


def draw_prompts(graph: Graph) -> Graph:
    """Return the graph with random choices for one run. Never draw twice: escaped braces have become plain braces."""
    return {node_id: _draw_node_prompts(node) for node_id, node in graph.items()}


def _draw_node_prompts(node: Mapping[str, Any]) -> dict[str, Any]:
    drawn = {name: draw_prompt(text) for name, text in dynamic_prompts_of(node).items()}
    return with_fixed_prompts({**node, "inputs": {**node["inputs"], **drawn}}, drawn) if drawn else dict(node)


def with_fixed_prompts(node: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return the node with these prompts no longer listed as dynamic."""
    rest = [name for name in dynamic_prompts_of(node) if name not in names]
    if len(rest) == len(dynamic_prompts_of(node)):
        return dict(node)
    meta = {name: value for name, value in node["_meta"].items() if name != DYNAMIC_PROMPTS}
    return {**node, "_meta": {**meta, DYNAMIC_PROMPTS: rest} if rest else meta}


def dynamic_prompts_of(node: Mapping[str, Any]) -> dict[str, str]:
    """Return the prompts of a node whose choices are made for each run."""
    meta = node.get("_meta")
    names = meta.get(DYNAMIC_PROMPTS) if isinstance(meta, dict) else None
    inputs = node["inputs"]
    return {
        name: inputs[name]
        for name in (names if isinstance(names, list) else ())
        if isinstance(name, str) and isinstance(inputs.get(name), str)
    }
