r"""Wildcards in prompts: `{a|b}` chooses one of its options, and `__name__` a line of `name.txt`.

Options may contain wildcards. A brace without an end includes the rest of the prompt. Braces without `|` stay as they
are, because other syntaxes use them. `\{`, `\}`, `\|`
and `\__` are plain characters. Lines of a file that are empty or begin with `#` are skipped.
"""

import itertools
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from comfyrelay.errors import InvalidInput
from comfyrelay.text import is_storable

MAX_FILE_BYTES = 1024**2
# Files may name each other, and braces may contain braces.
MAX_DEPTH = 10
_FILE = r"__(?P<file>[A-Za-z0-9-]+(?:[_/][A-Za-z0-9-]+)*)__"
_TOKEN = re.compile(rf"\\(?P<escaped>[{{}}|]|__)|(?P<sign>[{{}}|])|{_FILE}|(?P<text>[^\\{{}}|_]+|.)", re.DOTALL)


@dataclass(frozen=True)
class _Choice:
    """One of these is used."""

    options: Sequence["_Parts"]

    def pick(self, rng: random.Random) -> str:
        return _pick(rng.choice(self.options), rng)

    @cached_property
    def count(self) -> int:
        # Many lines may name the same file, so each choice is counted once.
        return sum(map(_count, self.options))

    def all(self) -> Iterator[str]:
        return itertools.chain.from_iterable(map(_all, self.options))


_Parts = Sequence[str | _Choice]
_Levels = list[list[list[str | _Choice]]]


def _pick(parts: _Parts, rng: random.Random) -> str:
    return "".join(part if isinstance(part, str) else part.pick(rng) for part in parts)


def _count(parts: _Parts) -> int:
    total = 1
    for part in parts:
        total *= 1 if isinstance(part, str) else part.count
    return total


def _all(parts: _Parts) -> Iterator[str]:
    lists = [[part] if isinstance(part, str) else list(part.all()) for part in parts]
    return map("".join, itertools.product(*lists))


def _close(levels: _Levels, *, end: str) -> None:
    """Add the innermost level to the one around it: as a choice, or as plain text if it has one option."""
    options = levels.pop()
    levels[-1][-1] += [_Choice(options)] if len(options) > 1 else ["{", *options[0], end]


@dataclass(frozen=True, slots=True)
class Template:
    """A prompt with wildcards."""

    parts: _Parts

    @property
    def count(self) -> int:
        """The number of combinations."""
        return _count(self.parts)

    def pick(self, rng: random.Random) -> str:
        return _pick(self.parts, rng)

    def all(self) -> list[str]:
        return list(_all(self.parts))


@dataclass(frozen=True, kw_only=True)
class Wildcards:
    """Reads templates. `folder` has the files; `None` if there are none, as on a server."""

    folder: Path | None
    _read: dict[str, _Choice] = field(default_factory=dict, repr=False)
    _templates: dict[str, Template] = field(default_factory=dict, repr=False)

    def template(self, text: str) -> Template:
        """Parse a prompt. Prompts of a batch repeat, so each is parsed once."""
        if text not in self._templates:
            self._templates[text] = Template(self._parse(text, depth=0))
        return self._templates[text]

    def _parse(self, text: str, *, depth: int) -> _Parts:
        if depth > MAX_DEPTH:
            raise InvalidInput(f"Wildcards are nested more than {MAX_DEPTH} deep. Does a file name itself?")
        # Each level is the options read so far. The last option is open.
        levels: _Levels = [[[]]]
        for token in _TOKEN.finditer(text):
            open_parts = levels[-1][-1]
            if name := token["file"]:
                open_parts.append(self._file(name, depth=depth + 1))
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
        # As in the editor, a brace without an end includes the rest.
        while len(levels) > 1:
            _close(levels, end="")
        return levels[0][0]

    def _file(self, name: str, *, depth: int) -> _Choice:
        if name not in self._read:
            lines = self._lines(name)
            self._read[name] = _Choice([self._parse(line, depth=depth) for line in lines])
        return self._read[name]

    def _lines(self, name: str) -> list[str]:
        if self.folder is None:
            raise InvalidInput(f"__{name}__: Only a desk has files of wildcards. Write the options as {{a|b}}.")
        try:
            base = self.folder.resolve(strict=True)
            path = (base / f"{name}.txt").resolve(strict=True)
            # The name has no dots, but a link may lead elsewhere.
            if not path.is_relative_to(base):
                raise InvalidInput(f"__{name}__: {name}.txt is a link that leads out of the wildcards folder.")
            with path.open("rb") as file:
                content = file.read(MAX_FILE_BYTES + 1)
            if len(content) > MAX_FILE_BYTES:
                raise InvalidInput(f"__{name}__: {name}.txt is larger than {MAX_FILE_BYTES:,} bytes.")
            text = content.decode("utf-8-sig")
        except (OSError, RuntimeError):
            # A link cycle is a RuntimeError.
            raise InvalidInput(
                f"__{name}__: There is no file {name}.txt in the folder 'wildcards' of the data folder."
            ) from None
        except UnicodeDecodeError:
            raise InvalidInput(f"__{name}__: {name}.txt is not text in UTF-8.") from None
        stripped = (line.strip() for line in text.splitlines())
        lines = [line for line in stripped if line and not line.startswith("#")]
        if not lines or not is_storable(text):
            raise InvalidInput(f"__{name}__: There is no usable line in {name}.txt.")
        return lines
