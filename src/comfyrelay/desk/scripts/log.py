"""Split a script's output into lines, and write it to a log of limited size."""

import codecs
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from comfyrelay.system.atomic import replacing
from comfyrelay.text import printable

MAX_LINE_LENGTH = 16 * 1024
_END = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class Line:
    """A line, or a part of a very long line that `continues`. In a terminal, the next line replaces a line that
    `is_overwritten`."""

    text: str
    is_overwritten: bool = False
    continues: bool = False


class Lines:
    """Splits bytes into lines, including progress bars that end with `\\r`. Invalid UTF-8 is replaced."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._is_after_return = False

    @property
    def unfinished(self) -> str:
        """The next line, which is still incomplete."""
        return printable(self._rest)

    def feed(self, piece: bytes, *, is_last: bool = False) -> Iterator[Line]:
        text = self._rest + self._decoder.decode(piece, is_last)
        start = 0
        # A trailing `\r` may be half of `\r\n`.
        for end in _END.finditer(text, 0, len(text) - (text.endswith("\r") and not is_last)):
            yield from self._line(text[start : end.start()], end[0])
            start = end.end()
        self._rest = text[start:]
        while len(self._rest) > MAX_LINE_LENGTH or (is_last and self._rest):
            yield Line(printable(self._rest[:MAX_LINE_LENGTH]), continues=len(self._rest) > MAX_LINE_LENGTH)
            self._rest = self._rest[MAX_LINE_LENGTH:]

    def _line(self, text: str, end: str) -> Iterator[Line]:
        is_overwritten = end == "\r"
        # A `\r` at the start of a line, as in progress bars, overwrites nothing.
        is_empty = not text and (is_overwritten or self._is_after_return)
        self._is_after_return = is_overwritten
        if is_empty:
            return
        while len(text) > MAX_LINE_LENGTH:
            yield Line(printable(text[:MAX_LINE_LENGTH]), continues=True)
            text = text[MAX_LINE_LENGTH:]
        yield Line(printable(text), is_overwritten=is_overwritten)


class BoundedLog:
    """A log file of at most `max_bytes`. The middle of a longer log is omitted."""

    def __init__(self, path: Path, *, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("wb")
        self._size = 0
        # The positions where the beginning ends, and where the part after the gap starts.
        self._head_end = self._tail_start = 0
        self._omitted = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._file.close()

    def write(self, text: str, *, end: str = "\n") -> None:
        self._size += self._file.write(f"{text}{end}".encode(errors="replace"))
        if self._size > self._max_bytes:
            self._shorten()

    def flush(self) -> None:
        """Make written text visible to readers."""
        self._file.flush()

    def _shorten(self) -> None:
        self._file.close()
        # The file is replaced in one step, so that readers see a complete log.
        with replacing(self._path) as new, self._path.open("rb") as old:
            if not self._head_end:
                head = old.read(self._max_bytes // 4)
                self._head_end = self._tail_start = head.rfind(b"\n") + 1 or len(head)
            old.seek(self._size - self._max_bytes // 2)
            old.readline(MAX_LINE_LENGTH)
            self._omitted += old.tell() - self._tail_start
            tail = old.tell()
            old.seek(0)
            new.write(old.read(self._head_end))
            new.write(f"[… {self._omitted:,} bytes omitted …]\n".encode())
            self._tail_start = new.tell()
            old.seek(tail)
            shutil.copyfileobj(old, new)
            self._size = new.tell()
        self._file = self._path.open("ab")
