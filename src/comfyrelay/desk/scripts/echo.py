"""Recognize given texts in a script's output. They may contain anything and must not be parsed."""

import json
import re
from collections.abc import Iterable

# The minimum length of a match. A lower limit would match the script's own words; a higher one would miss text that was
# truncated or wrapped.
MIN_MATCH = 12
_SPACE = re.compile(r"\s+")


class Echo:
    """Removes repeated input text from lines."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        given = [text for text in texts if text.strip()]
        self._texts = [_one_line(_to_lower(text)) for text in given]
        forms = {_to_lower(form) for text in given for form in _forms(text)}
        self._parts = {text[start : start + MIN_MATCH] for text in forms for start in range(len(text) - MIN_MATCH + 1)}
        lines = {line.strip() for text in given for line in _to_lower(text).splitlines()}
        # Short texts that could be mistaken for a count, a seed or a file name.
        ambiguous = (line for line in lines if len(line) < MIN_MATCH and re.search(r"\d|\.", line))
        short = sorted(ambiguous, key=len, reverse=True)
        self._short = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, short))})(?!\w)") if short else None

    def without(self, line: str) -> str:
        """Return the rest of a line; empty if the line is part of a given text."""
        if not self._texts:
            return line
        lowered = _to_lower(line)
        if any(_one_line(lowered) in text for text in self._texts):
            return ""
        repeated = bytearray(len(line))
        for start in range(len(line) - MIN_MATCH + 1):
            if lowered[start : start + MIN_MATCH] in self._parts:
                repeated[start : start + MIN_MATCH] = b"\1" * MIN_MATCH
        for found in self._short.finditer(lowered) if self._short is not None else ():
            repeated[found.start() : found.end()] = b"\1" * (found.end() - found.start())
        return "".join(" " if is_repeated else char for char, is_repeated in zip(line, repeated, strict=True))


def _one_line(text: str) -> str:
    return _SPACE.sub(" ", text).strip()


def _forms(text: str) -> set[str]:
    """Return the text unchanged, as one line, and in the notations of JSON and Python."""
    return {text, _one_line(text), json.dumps(text), json.dumps(text, ensure_ascii=False), repr(text)}


def _to_lower(text: str) -> str:
    """Return the text in lower case with the same length: a character that would become two is not changed."""
    if text.isascii():
        return text.lower()
    return "".join(lower if len(lower := char.lower()) == 1 else char for char in text)
