"""Clean untrusted text for storage and display, and sort it naturally.

PostgreSQL cannot store NUL, and no encoding can store half of a surrogate pair. User input with such characters is
refused. A worker's output is cleaned instead, because the job must still complete. Names and logs must not contain
terminal control sequences.
"""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")
# Terminal sequences (colours, cursor, title) and control characters without width.
_TERMINAL_CONTROLS = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]{0,1000}(?:\x07|\x1b\\)?|\x1b[@-_]"
    r"|[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f]"
)
# Control and format characters, surrogates, and line and paragraph separators.
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# Tabs, and the joiners that emoji and some scripts need.
_ALLOWED = frozenset("\t\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}")
# Direction overrides and isolates would affect the text after a name.
_REORDERING = re.compile(r"[\u202a-\u202e\u2066-\u2069]")
_LINE_BREAKING = frozenset({"Cc", "Zl", "Zp"})
_DIGITS = re.compile(r"([0-9]+)")


def is_storable(text: str) -> bool:
    return _UNSTORABLE.search(text) is None


def storable(value: Any) -> Any:
    """Replace the characters of a JSON value that cannot be stored."""
    if isinstance(value, str):
        return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, Mapping):
        return {storable(key): storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [storable(item) for item in value]
    if is_dataclass(value):
        return {field.name: storable(getattr(value, field.name)) for field in fields(value)}
    return value


def printable(text: str) -> str:
    """Return the text as one line without terminal control sequences. Tabs are kept."""
    if text.isprintable():
        return text
    return "".join(
        " " if unicodedata.category(char) in _INVISIBLE and char not in _ALLOWED else char
        for char in _TERMINAL_CONTROLS.sub("", text)
    )


def one_line(text: str) -> str:
    """Return a name as one line without terminal control sequences and direction overrides. Joiners and direction marks
    are kept."""
    if text.isprintable():
        return text
    visible = _REORDERING.sub("", _TERMINAL_CONTROLS.sub("", text))
    line = "".join(" " if unicodedata.category(char) in _LINE_BREAKING else char for char in visible)
    return line or "\N{REPLACEMENT CHARACTER}"


def excerpt(text: str, *, length: int) -> str:
    """Return the beginning of a text as one line of at most `length` characters, cut between words."""
    # A prompt may have millions of characters. The limit leaves room for control sequences, which are removed.
    line = " ".join(one_line(text.lstrip()[: 100 * length]).split())
    return line if len(line) <= length else f"{line[:length].rsplit(' ', 1)[0][: length - 1]}…"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, such as "1 job" or "2,000 jobs"."""
    return f"{count:,} {noun if count == 1 else f'{noun}s'}"


def format_bytes(count: int) -> str:
    """Format a number of bytes, as in `1.5 GB`."""
    size = float(count)
    for unit in ("B", "KB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def natural_key(text: str) -> tuple[tuple[Any, ...], str]:
    """Return a key for natural sorting: `a2` before `a10`."""
    # Compare digits by length: Python converts at most 4,300 of them to a number.
    parts: list[Any] = _DIGITS.split(text.casefold())
    numbers = [part.lstrip("0") for part in parts[1::2]]
    parts[1::2] = [(len(number), number) for number in numbers]
    return tuple(parts), text
