"""Reduce a worker's error report to one sentence for the user, without paths, URLs or secrets of the server."""

import json
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from comfyrelay.text import printable

FALLBACK = "Processing failed."
MAX_LENGTH = 300

# A worker may send megabytes of traceback. The message is at the beginning or the end.
_READ_LENGTH = 200_000
# Longer than MAX_LENGTH, because cleaning removes paths before the line is cut.
_LINE_LENGTH = 4_000
# The message is one of the first lines that contain more than a stack frame.
_MAX_LINES = 1_000
_MAX_DEPTH = 3
_KEYS = ("exception_message", "error_message")

_QUOTED_MESSAGE = re.compile(r"""\b(?:exception|error)_message["']?\s*[:=]\s*(["'])((?:\\.|(?!\1)[^\\])+)""", re.S)
_EXCEPTION_LINE = re.compile(r"^[ \t]*(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)[ \t]*:[ \t]*(\S.*)$", re.M)
_BOILERPLATE = re.compile(r"Traceback \(most recent call last\):?|During handling of the above|The above exception was")

_FRAME = re.compile(r"""\bFile\s+(?:"[^"]*"|'[^']*'),\s*line\s+\d+(?:,\s*in\s+[\w.<>]+)?""")
_FILE_URL = re.compile(r"\bfile:(?=//)", re.I)
_URL = re.compile(r"""[a-z0-9+.-]{0,20}://[^\s"'<>]*""", re.I)
SECRET = re.compile(
    r"(?<![\w-])(?>[\w-]*?x-amz-)[\w-]++[=:]\s*\S+|\b(?:signature|sig|token|secret|password|api[_-]?key)=\S+"
    r"|\bbearer\s+\S+",
    re.I,
)
# A quoted path, or one with a drive letter, may contain spaces.
_QUOTED_PATH = re.compile(r"""(["'`])((?:~|\.{1,2}|[A-Za-z]:)?[\\/][^"'`]*)\1""")
_DRIVE_PATH = re.compile(r"""\b[A-Za-z]:[\\/](?:[^\\/:*?"'<>|]+[\\/]+)*[^\\/:*?"'<>|\s,;)]*""")
_SPACED_PATH = re.compile(r"(?<![\w/~.])(?:~|\.{1,2})?/(?:[^\s/:\"'`]+(?: [^\s/:\"'`]+){0,2}/)+[^\s/:\"'`,;)]*")
# Any other text that may have path separators.
_RUN = re.compile(r"""[^\s"'`<>|()\[\]{},;:=]+""")
# Text with slashes that is not a path, such as "width/height/depth" or "2024/01/02".
_WORDS = re.compile(
    r"(?!.*\.[A-Za-z]\w*\W*$)(?!.*/(?:home|root|users|usr|opt|srv|mnt|media|var|etc|tmp|data|workspace)/)"
    r"[\w.%+&-]+(?:/[\w.%+&-]+)+[.!?]?",
    re.I,
)
_EMPTY_PAIR = re.compile(r"""\(\s*\)|\[\s*\]|\{\s*\}|(["'`])\s*\1""")
_LOOSE_MARK = re.compile(r" ([:,;])")

_ESCAPES = {"n": "\n", "r": "\n", "t": " ", '"': '"', "'": "'", "\\": "\\", "/": "/"}
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.S)


def user_sentence(raw: str | None) -> str:
    """Return one sentence for the user from a worker's raw error text, or a fallback; never empty."""
    text = raw or ""
    if len(text) > _READ_LENGTH:
        text = f"{text[: _READ_LENGTH // 2]}\n{text[-_READ_LENGTH // 2 :]}"
    lines = (line for candidate in _candidates(text) for line in candidate.splitlines() if line.strip())
    for line in islice(lines, _MAX_LINES):
        if sentence := _clean(line.strip()[:_LINE_LENGTH]):
            return sentence if len(sentence) <= MAX_LENGTH else f"{sentence[: MAX_LENGTH - 1].rstrip()}…"
    return FALLBACK


def _candidates(text: str) -> Iterator[str]:
    """Yield texts that may contain the message, the most specific first."""
    yield from _texts_in_json(text)
    for found in _QUOTED_MESSAGE.finditer(text):
        yield _unescape(found[2])
    yield from reversed(_EXCEPTION_LINE.findall(text)[-10:])
    yield text


def _texts_in_json(text: str) -> Iterator[str]:
    if text.lstrip()[:1] not in ("{", "[", '"'):
        return
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return
    if isinstance(value, str):
        yield from _texts_in_json(value)
        yield value
    for message in _messages(value):
        # A message may itself be a JSON response of ComfyUI.
        yield from _texts_in_json(message)
        yield message


def _messages(value: Any) -> Iterator[str]:
    level = [value]
    for _ in range(_MAX_DEPTH):
        objects = [item for item in level if isinstance(item, dict)]
        for key in _KEYS:
            yield from (item[key] for item in objects if isinstance(item.get(key), str))
        level = [child for item in level for child in _children(item)]


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _unescape(text: str) -> str:
    """Unescape JSON or `repr` text that does not parse."""
    return _ESCAPE.sub(lambda m: chr(int(m[1], 16)) if m[1] else _ESCAPES.get(m[2], m[0]), text)


def _clean(line: str) -> str:
    """Remove server internals from a line. Returns "" if no letters or digits remain."""
    text = printable(line)
    text = _BOILERPLATE.sub(" ", _FRAME.sub(" ", text))
    text = _URL.sub("[link]", _FILE_URL.sub("", text))
    text = SECRET.sub(" ", text)
    text = _QUOTED_PATH.sub(lambda m: f"{m[1]}{_base_name(m[2])}{m[1]}", text)
    text = _DRIVE_PATH.sub(lambda m: _base_name(m[0]), text)
    text = _SPACED_PATH.sub(lambda m: _base_name(m[0]), text)
    text = _RUN.sub(lambda m: _without_folders(m[0]), text)
    text = _LOOSE_MARK.sub(r"\1", " ".join(_EMPTY_PAIR.sub(" ", text).split())).strip(" :,;-")
    return text if any(letter.isalnum() for letter in text) else ""


def _base_name(path: str) -> str:
    return re.split(r"[\\/]", path.rstrip("\\/"))[-1]


def _without_folders(run: str) -> str:
    # A single separator, as in "step 3 / 10" or "and/or", is not a path.
    separators = run.count("/") + run.count("\\")
    is_path = separators > 0 and (run[0] in "/\\~." or (separators > 1 and not _WORDS.fullmatch(run)))
    return _base_name(run) if is_path and len(run) > 1 else run
