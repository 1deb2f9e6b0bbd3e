"""Parse a script's output: progress, saved files and seed."""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from comfyrelay.comfyui.graphs.nodes import MEDIA_SUFFIXES
from comfyrelay.desk.batches.expand import MAX_SEED
from comfyrelay.desk.scripts.echo import Echo

MAX_FILES = 10_000
# The last lines explain a failure.
TAIL_CHARACTERS = 256 * 1024
# Only the start of a line is parsed, because the regular expressions are slow, and progress appears there.
_MAX_PARSED = 2_000
# The clock of a file system may be coarser than the clock of this process, or slightly late.
_CLOCK_TOLERANCE_SECONDS = 2.0

_OF = r"(\d{1,6})\s*(?:/|\bof\b)\s*(\d{1,6})"
_BRACKETED = re.compile(r"\[\s*(\d{1,6})\s*/\s*(\d{1,6})\s*\]")
_NAMED = re.compile(rf"\b(?:item|image|input|file|video|clip|job|processing|generating)\s+#?{_OF}\b", re.I)
_BAR = re.compile(r"(\d{1,3})%\|[^|]{0,500}\|\s*(\d{1,9})/(\d{1,9})\b")
_PERCENT = re.compile(r"(?<![\w.])(\d{1,3}(?:\.\d{1,6})?)\s?%")
_COUNT = re.compile(rf"(?<![\w/.\\:-]){_OF}(?![\w/.:%-])")
# A percentage in a line with one of these words is not progress.
_METER = re.compile(r"\b(?:v?ram|[cg]pu|mem(?:ory)?|disk|swap|util\w*|battery)\b", re.I)
# Lines with an echoed prompt are skipped, because a prompt may contain anything.
_ECHO = re.compile(r"\W{0,4}(?:positive|negative|prompt)\b(?!_id)", re.I)
_SEED = re.compile(r"\b(?:\w{1,20}_)?seed[\"']?(?:\s*(?:[:=]|->|→|is\b|used\b|to\b)){0,2}\s*[\"']?(\d{1,20})\b", re.I)

_SUFFIX = "|".join(suffix[1:] for suffix in MEDIA_SUFFIXES)
_HAS_MEDIA = re.compile(rf"\.(?:{_SUFFIX})\b", re.I)
_SAVED = re.compile(
    r"\b(?:saved?|saving|wrote|writing|written|outputs?|created?|exported|rendered|downloaded|results?)\b|[-=]>|→", re.I
)
_BETWEEN = re.compile(
    r"(?:[\s:=>→,-]|\b(?:the|new|videos?|images?|audio|files?|clips?|outputs?|frames?|results?|to|as|at|in|into|path|is|are|\d+)\b"
    r"(?=[\s:=]))*",
    re.I,
)
_PATH = rf".{{1,1000}}?\.(?:{_SUFFIX})(?=$|[\s\"'`),;\]])"
_UP_TO_SUFFIX = re.compile(_PATH, re.I)
_QUOTED = re.compile(rf"([\"'`])(.{{1,1000}}?\.(?:{_SUFFIX}))\1", re.I)
_ABSOLUTE = re.compile(rf"(?<![\w.])(?:~?/|[A-Za-z]:[\\/]){_PATH}", re.I)
_IN_A_FOLDER = re.compile(r"\s*(?:~?/|[A-Za-z]:[\\/]|[\w.-]+/)")
_WORD = re.compile(rf"\S{{1,1000}}\.(?:{_SUFFIX})(?=$|[\s\"'`),;\]])", re.I)


@dataclass(frozen=True, slots=True)
class ScriptProgress:
    """Progress from 0 to 1, with the current item and the number of items, if given."""

    fraction: float
    item: int | None = None
    items: int | None = None


class OutputParser:
    """Parses lines in bounded memory. `texts` are the texts that the script was given and may echo."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._echo = Echo(texts)
        self.seed: int | None = None
        # For each line that may name a file: the possible paths, and whether the line says that the file was saved.
        self.candidates: dict[tuple[str, ...], bool] = {}
        self._item: tuple[int, int] | None = None
        self._tail: deque[str] = deque()
        self._tail_characters = 0

    @property
    def tail(self) -> str:
        return "".join(self._tail)

    def add(self, text: str, *, end: str = "\n") -> ScriptProgress | None:
        """Parse a line. Returns its progress, if any."""
        own = self._echo.without(text)
        self._add_to_tail(own + end if own.strip() else "")
        text, own = text[:_MAX_PARSED], own[:_MAX_PARSED]
        if _ECHO.match(text):
            return None
        if "seed" in own or "SEED" in own or "Seed" in own:
            seeds = [int(number) for number in _SEED.findall(own) if int(number) <= MAX_SEED]
            self.seed = seeds[-1] if seeds else self.seed
        self._note_files(text, own)
        return self._progress(own)

    def progress(self, text: str) -> ScriptProgress | None:
        """Return the progress at the beginning of a line, if any."""
        return self._progress(self._echo.without(text[:_MAX_PARSED]))

    def _progress(self, text: str) -> ScriptProgress | None:
        """Return the progress in a text. Items are counted in brackets or named: `[2/5]`, `image 2 of 5`. Any other
        progress is within the current item."""
        if "%" not in text and "/" not in text and " of " not in text:
            return None
        found = _BRACKETED.search(text) or _NAMED.search(text)
        item = _pair(found[1], found[2]) if found else None
        within = _within(text[found.end() :] if found and item else text)
        if within is None and item in (None, self._item):
            return None
        self._item = item or self._item
        if self._item is None:
            return None if within is None else ScriptProgress(within)
        number, total = self._item
        return ScriptProgress(min(1.0, (max(number - 1, 0) + (within or 0.0)) / total), number, total)

    def _note_files(self, text: str, own: str) -> None:
        if len(self.candidates) >= MAX_FILES or not _HAS_MEDIA.search(text):
            return
        says_saved = _SAVED.search(own) is not None
        if found := tuple(_candidates(own)):
            self.candidates[found] = says_saved
        # A file name may contain a given text, but only the script's own text can say that a file was saved.
        if own != text and (says_saved or _IN_A_FOLDER.match(own)) and (found := tuple(_candidates(text))):
            self.candidates.setdefault(found, False)

    def _add_to_tail(self, text: str) -> None:
        self._tail.append(text)
        self._tail_characters += len(text)
        while self._tail_characters > TAIL_CHARACTERS:
            self._tail_characters -= len(self._tail.popleft())


def saved_files(candidates: Mapping[tuple[str, ...], bool], *, folders: Sequence[Path], since: float) -> list[Path]:
    """Return each file in these folders that a line names and that was written since the given time.

    ComfyUI skips cached work, so an older file counts if the script says that it was saved.
    """
    saved = [line for line, says_saved in candidates.items() if says_saved]
    return _existing(candidates, folders, since) or _existing(saved, folders, float("-inf"))


def new_media(folder: Path, *, since: float) -> list[Path]:
    """Return the media files below a folder that were written since the given time, oldest first."""
    media = (path for path in folder.rglob("*") if path.suffix.lower() in MEDIA_SUFFIXES)
    found = [path for path in media if _is_new(path, since) and _is_inside(path, [folder])]
    return sorted(found, key=lambda path: path.stat().st_mtime)


def _existing(lines: Iterable[tuple[str, ...]], folders: Sequence[Path], since: float) -> list[Path]:
    found: dict[Path, None] = {}
    for line in lines:
        paths = (folder / Path(text).expanduser() for text in line for folder in folders)
        path = next((path for path in paths if _is_new(path, since) and _is_inside(path, folders)), None)
        if path is not None:
            found[path.resolve()] = None
    return list(found)


def _is_inside(path: Path, folders: Sequence[Path]) -> bool:
    resolved = path.resolve()
    return any(resolved.is_relative_to(folder.resolve()) for folder in folders)


def _is_new(path: Path, since: float) -> bool:
    try:
        return path.is_file() and path.stat().st_mtime >= since - _CLOCK_TOLERANCE_SECONDS
    except (OSError, ValueError):
        return False


def _candidates(text: str) -> Iterator[str]:
    """Yield possible paths in a line, most likely first. The caller uses the first path that exists."""
    saved = _SAVED.search(text)
    rest = text[saved.end() :] if saved else text.strip()
    rest = rest[between.end() :] if (between := _BETWEEN.match(rest)) else rest
    if quoted := _QUOTED.search(rest):
        yield quoted[2]
    for found in (_UP_TO_SUFFIX.match(rest), _ABSOLUTE.search(rest), _WORD.search(rest)) if saved else ():
        if found:
            yield found[0].strip("\"'`(")
    if not saved and (alone := _UP_TO_SUFFIX.fullmatch(rest)):
        yield alone[0]


def _within(text: str) -> float | None:
    if (bar := _BAR.search(text)) and (counted := _pair(bar[2], bar[3])):
        return counted[0] / counted[1]
    if (percent := _PERCENT.search(text)) and not _METER.search(text):
        value = float(percent[1]) / 100
        return value if value <= 1 else None
    if (count := _COUNT.search(text)) and (counted := _pair(count[1], count[2])):
        return counted[0] / counted[1]
    return None


def _pair(number: str, total: str) -> tuple[int, int] | None:
    return (int(number), int(total)) if 0 <= int(number) <= int(total) and int(total) > 0 else None
