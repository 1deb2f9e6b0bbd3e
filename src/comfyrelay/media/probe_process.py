"""Manage probe processes: start them on demand, and kill them at a timeout.

Their answers are not trusted: a file that takes over such a process must not gain anything.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from typing import IO, Any, Final, get_args

from comfyrelay.errors import StorageUnavailable
from comfyrelay.media.info import Drawn, MediaInfo, MediaRefused, Piece, ProbeLimits, Why
from comfyrelay.media_types import MediaKind
from comfyrelay.system.processes import LIMITS_MEMORY, memory_of

# Length prefix of requested bytes.
LENGTH_BYTES = 8
LONGEST_LINE = 4096
LARGEST_READ = 64 * 1024 * 1024
# Maximum size of a poster or preview, and time for its transfer.
LARGEST_PIECE = 4 * 1024 * 1024
PIECE_SECONDS = 5.0
# File signatures of posters and previews, with offsets.
MARKS: Final = {
    ("poster", "webp"): (8, b"WEBP"),
    ("preview", "mp4"): (4, b"ftyp"),
    ("preview", "webm"): (0, b"\x1aE\xdf\xa3"),
}
# Start timeout; only a busy machine takes this long.
START_SECONDS = 120.0
# How often memory is checked if the system cannot limit it.
LOOK_SECONDS = 0.05
# Environment that Python and its libraries need to start; no secrets.
ENVIRONMENT: Final = (
    *("PATH", "HOME", "LANG", "LC_ALL", "SYSTEMROOT", "TEMP", "TMP", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"),
    *("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "VIRTUAL_ENV"),
    # on Windows, needed to find user packages
    *("APPDATA", "USERPROFILE"),
)

Read = Callable[[int, int], bytes]


class ProbeProcess:
    """A probe process. Its calls block: use it in a thread."""

    def __init__(self) -> None:
        # whether it answered and can be reused
        self.is_idle = False
        self._process = subprocess.Popen(
            # not the current folder, which may be untrusted
            [sys.executable, "-P", "-m", "comfyrelay.media.probe_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
        )
        # its initial memory
        self._own_bytes = 0
        try:
            self._receive(START_SECONDS)
            if not LIMITS_MEMORY:
                self._own_bytes = memory_of(self.pid)
        except MediaRefused:
            self.kill()
            raise StorageUnavailable("Media cannot be checked now: the process for it did not start.") from None

    @property
    def pid(self) -> int:
        return self._process.pid

    def probe(self, kind: MediaKind, *, size: int, limits: ProbeLimits, read: Read) -> MediaInfo:
        """Return what the file is, or raise `MediaRefused`."""
        self._ask(kind, size, limits, draws=False)
        for message in self._answers(limits.timeout_seconds, limits, read):
            match message:
                case {"found": [width, height, duration_seconds, frames]}:
                    self.is_idle = True
                    return MediaInfo(
                        kind=kind,
                        width=_whole(width),
                        height=_whole(height),
                        duration_seconds=float(duration_seconds) if isinstance(duration_seconds, int | float) else None,
                        frames=_whole(frames),
                    )
                case _:
                    break
        raise MediaRefused("unreadable")

    def draw(self, kind: MediaKind, *, size: int, limits: ProbeLimits, read: Read) -> Drawn:
        """Return poster and preview, as far as they were ready in time."""
        self._ask(kind, size, limits, draws=True)
        drawn = Drawn()
        try:
            for message in self._answers(limits.drawing_seconds, limits, read):
                match message:
                    case {"piece": [name, extension, int(length)]} if 0 < length <= LARGEST_PIECE:
                        drawn = _with_piece(drawn, name, extension, self._bytes(length, limits))
                    case {"done": True}:
                        self.is_idle = True
                        return drawn
                    case _:
                        break
            raise MediaRefused("unreadable")
        except MediaRefused:
            if drawn.poster is None:
                raise
            return drawn

    def _ask(self, kind: MediaKind, size: int, limits: ProbeLimits, *, draws: bool) -> None:
        self.is_idle = False
        job = {"kind": kind, "size": size, "limits": asdict(limits), "draws": draws}
        self._send(json.dumps(job).encode() + b"\n")

    def _answers(self, seconds: float, limits: ProbeLimits, read: Read) -> Iterator[Any]:
        """Return its answer, serving its range requests. Raises `MediaRefused` on refusal or timeout."""
        left = seconds
        while True:
            begun = time.monotonic()
            message = self._receive(left, more_bytes=limits.max_memory_bytes)
            # the time that storage takes is not counted
            left -= time.monotonic() - begun
            match message:
                case {"read": [int(start), int(length)]} if start >= 0 and 0 < length <= LARGEST_READ:
                    data = read(start, length)
                    self._send(len(data).to_bytes(LENGTH_BYTES) + data)
                case {"refused": why} if why in get_args(Why):
                    # it may not have released all memory
                    self.is_idle = why != "memory"
                    raise MediaRefused(why, size=_size(message.get("size")))
                case _:
                    yield message

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            # drop unsent data
            with suppress(OSError):
                _opened(pipe).close()

    def _receive(self, seconds: float, *, more_bytes: int | None = None) -> Any:
        line = self._watched(lambda out: out.readline(LONGEST_LINE), seconds, more_bytes)
        try:
            return json.loads(line)
        except ValueError:
            # it crashed: libraries may abort when out of memory
            raise MediaRefused("unreadable" if line else "memory") from None

    def _bytes(self, length: int, limits: ProbeLimits) -> bytes:
        data = self._watched(lambda out: out.read(length), PIECE_SECONDS, limits.max_memory_bytes)
        if len(data) != length:
            raise MediaRefused("unreadable")
        return data

    def _watched(self, take: Callable[[IO[bytes]], bytes], seconds: float, more_bytes: int | None) -> bytes:
        """Read its output within the limits of time and memory."""
        has_answered = threading.Event()
        ended_for: list[Why] = []
        until = time.monotonic() + seconds

        def watch() -> None:
            while not has_answered.wait(_pause(until)):
                if time.monotonic() >= until:
                    ended_for.append("time")
                elif self._is_too_large(more_bytes):
                    ended_for.append("memory")
                if ended_for:
                    self._process.kill()
                    return

        watching = threading.Thread(target=watch, daemon=True)
        watching.start()
        try:
            taken = take(_opened(self._process.stdout))
        finally:
            has_answered.set()
            watching.join()
        if not ended_for and self._is_too_large(more_bytes):
            ended_for.append("memory")
        if ended_for:
            raise MediaRefused(ended_for[0])
        return taken

    def _is_too_large(self, more_bytes: int | None) -> bool:
        """Memory is not checked if the process limits itself."""
        return not LIMITS_MEMORY and more_bytes is not None and memory_of(self.pid) > self._own_bytes + more_bytes

    def _send(self, data: bytes) -> None:
        # a dead process is noticed when its answer is read
        with suppress(OSError):
            _opened(self._process.stdin).write(data)
            _opened(self._process.stdin).flush()


class _Idle:
    """Idle processes for reuse: starting one takes longer than most files."""

    def __init__(self) -> None:
        self._waiting: list[ProbeProcess] = []
        self._lock = threading.Lock()

    def take(self) -> ProbeProcess:
        with self._lock:
            found = self._waiting.pop() if self._waiting else None
        return found or ProbeProcess()

    def give_back(self, process: ProbeProcess) -> None:
        with self._lock:
            self._waiting.append(process)


_IDLE = _Idle()


def probe(kind: MediaKind, *, size: int, limits: ProbeLimits, read: Read) -> MediaInfo:
    """Probe a file in a separate process."""
    with _taken() as process:
        return process.probe(kind, size=size, limits=limits, read=read)


def draw(kind: MediaKind, *, size: int, limits: ProbeLimits, read: Read) -> Drawn:
    """Draw poster and preview in a separate process."""
    with _taken() as process:
        return process.draw(kind, size=size, limits=limits, read=read)


@contextmanager
def _taken() -> Iterator[ProbeProcess]:
    process = _IDLE.take()
    try:
        yield process
    finally:
        if process.is_idle:
            _IDLE.give_back(process)
        else:
            process.kill()


def _with_piece(drawn: Drawn, name: Any, extension: Any, data: bytes) -> Drawn:
    """Check that a piece starts with the signature of its type."""
    at, mark = MARKS.get((name, extension), (0, b""))
    if not mark or data[at : at + len(mark)] != mark:
        raise MediaRefused("unreadable")
    piece = Piece(name=name, extension=extension, data=data)
    return replace(drawn, poster=piece) if name == "poster" else replace(drawn, preview=piece)


def _pause(until: float) -> float:
    """Seconds until the next memory check; the whole timeout if the process limits itself."""
    left = max(0.0, until - time.monotonic())
    return left if LIMITS_MEMORY else min(left, LOOK_SECONDS)


def _opened(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and 0 <= value < 2**63 else None


def _size(value: Any) -> tuple[int, int] | None:
    match value:
        case [int(width), int(height)]:
            return width, height
        case _:
            return None
