"""Text from others, fit to be kept, to be shown, and to be sorted as people count.

PostgreSQL takes no NUL, and nothing takes half of a surrogate pair. What a user sends is refused for such a character;
what a worker says is cleaned, for a job must end whatever was printed. A terminal obeys what it is shown: names and
logs must not move its cursor.
"""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")
# Colours, cursor movements, titles of terminals, and the control characters that leave no room where they stand.
_OBEYED = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]{0,1000}(?:\x07|\x1b\\)?|\x1b[@-_]"
    r"|[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f]"
)
# Controls, marks that reorder or hide text, halves of pairs, and ends of lines and paragraphs.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# Tabs, and the joiners without which emoji and some scripts fall apart.
_KEPT = frozenset("\t\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}")
# What is written over, or apart from, all that follows: of it a name holds no end.
_REORDERING = re.compile(r"[\u202a-\u202e\u2066-\u2069]")
_ENDING = frozenset({"Cc", "Zl", "Zp"})
_DIGITS = re.compile(r"([0-9]+)")


def is_storable(text: str) -> bool:
    return _UNSTORABLE.search(text) is None


def storable(value: Any) -> Any:
    """The JSON value with every character that cannot be stored replaced."""
    if isinstance(value, str):
        return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, Mapping):
        return {storable(key): storable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [storable(each) for each in value]
    if is_dataclass(value):
        return {each.name: storable(getattr(value, each.name)) for each in fields(value)}
    return value


def printable(text: str) -> str:
    """The text as one line, with its tabs and without anything that a terminal would obey."""
    if text.isprintable():
        return text
    seen = _OBEYED.sub("", text)
    return "".join(" " if unicodedata.category(each) in _UNSEEN and each not in _KEPT else each for each in seen)


def one_line(text: str) -> str:
    """A name or a label as it may be kept: one line, without what a terminal would obey, and without what turns the
    text after it around. The marks that stand inside of words and between directions stay."""
    if text.isprintable():
        return text
    seen = _REORDERING.sub("", _OBEYED.sub("", text))
    line = "".join(" " if unicodedata.category(each) in _ENDING else each for each in seen)
    return line or "\N{REPLACEMENT CHARACTER}"


def excerpt(text: str, *, length: int) -> str:
    """The beginning of a text as one line, cut between words."""
    line = " ".join(one_line(text).split())
    return line if len(line) <= length else f"{line[:length].rsplit(' ', 1)[0]}…"


def size_of(count: int) -> str:
    """So many bytes, as people say it: `1.5 GB`."""
    size = float(count)
    for unit in ("B", "KB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def natural(text: str) -> tuple[tuple[Any, ...], str]:
    """A key that sorts as people count: `a2` before `a10`."""
    # digits by their length and not as a number: Python reads none of more than 4,300
    parts: list[Any] = _DIGITS.split(text.casefold())
    numbers = [part.lstrip("0") for part in parts[1::2]]
    parts[1::2] = [(len(number), number) for number in numbers]
    return tuple(parts), text
