"""Recognise in a script's output the text that it was given: it may say anything and is not the script's own."""

import json
import re
from collections.abc import Iterable

# Minimum length of a match. Shorter matches would hit the script's own words; longer ones would miss cut or wrapped
# text.
RUN = 12
_SPACE = re.compile(r"\s+")


class Echo:
    """Removes repeated input text from lines."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        given = [each for each in texts if each.strip()]
        self._texts = [_plain(_lowered(each)) for each in given]
        forms = {_lowered(form) for text in given for form in _written(text)}
        self._runs = {text[start : start + RUN] for text in forms for start in range(len(text) - RUN + 1)}
        lines = {line.strip() for text in given for line in _lowered(text).splitlines()}
        # short texts that could be mistaken for a count, a seed or a file name
        short = sorted((each for each in lines if len(each) < RUN and re.search(r"\d|\.", each)), key=len, reverse=True)
        self._short = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, short))})(?!\w)") if short else None

    def without(self, line: str) -> str:
        """Return the rest of a line; empty if the line is part of a given text."""
        if not self._texts:
            return line
        lowered = _lowered(line)
        if any(_plain(lowered) in text for text in self._texts):
            return ""
        repeated = bytearray(len(line))
        for start in range(len(line) - RUN + 1):
            if lowered[start : start + RUN] in self._runs:
                repeated[start : start + RUN] = b"\1" * RUN
        for found in self._short.finditer(lowered) if self._short is not None else ():
            repeated[found.start() : found.end()] = b"\1" * (found.end() - found.start())
        return "".join(" " if is_repeated else each for each, is_repeated in zip(line, repeated, strict=True))


def _plain(text: str) -> str:
    return _SPACE.sub(" ", text).strip()


def _written(text: str) -> set[str]:
    """As is, as one line, and as JSON and Python write it."""
    return {text, _plain(text), json.dumps(text), json.dumps(text, ensure_ascii=False), repr(text)}


def _lowered(text: str) -> str:
    """Lowercase with positions kept: characters that would become two stay."""
    if text.isascii():
        return text.lower()
    return "".join(small if len(small := each.lower()) == 1 else each for each in text)
