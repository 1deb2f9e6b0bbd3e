"""The processes that look into media, as the server has them: started when needed, killed when they take too long.

What comes from such a process is not trusted: a file that took it over can only say what a file may be.
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

# The length that comes before the bytes that were asked for.
LENGTH_BYTES = 8
LONGEST_LINE = 4096
LARGEST_READ = 64 * 1024 * 1024
# Of a poster or a preview, and how long it may take to come through the pipe once it is made.
LARGEST_PIECE = 4 * 1024 * 1024
PIECE_SECONDS = 5.0
# What these files have in them, and where.
MARKS: Final = {
    ("poster", "webp"): (8, b"WEBP"),
    ("preview", "mp4"): (4, b"ftyp"),
    ("preview", "webm"): (0, b"\x1aE\xdf\xa3"),
}
# Only a machine with much else to do takes so long to start one.
START_SECONDS = 120.0
# How often its memory is looked at, where nothing else limits it.
LOOK_SECONDS = 0.05
# What Python and its libraries need to start; secrets are not among it.
ENVIRONMENT: Final = (
    *("PATH", "HOME", "LANG", "LC_ALL", "SYSTEMROOT", "TEMP", "TMP", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"),
    *("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "VIRTUAL_ENV"),
    # on Windows, where packages of the user's own are found by these
    *("APPDATA", "USERPROFILE"),
)

Read = Callable[[int, int], bytes]


class ProbeProcess:
    """One of them; blocking, for use in a thread."""

    def __init__(self) -> None:
        # whether it has answered, and can be asked again
        self.is_idle = False
        self._process = subprocess.Popen(
            # not from the present folder, which may be anybody's
            [sys.executable, "-P", "-m", "comfyrelay.media.probe_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
        )
        # what it takes by itself
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
        """Return what can be shown in place of the file, as far as it was made in time."""
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
        """What it says, but for what it wants to read; raises `MediaRefused` when it does, or when its time is up."""
        left = seconds
        while True:
            begun = time.monotonic()
            message = self._receive(left, more_bytes=limits.max_memory_bytes)
            # the time that storage takes is not its own
            left -= time.monotonic() - begun
            match message:
                case {"read": [int(start), int(length)]} if start >= 0 and 0 < length <= LARGEST_READ:
                    data = read(start, length)
                    self._send(len(data).to_bytes(LENGTH_BYTES) + data)
                case {"refused": why} if why in get_args(Why):
                    # one that ran out of memory may not have all of it back
                    self.is_idle = why != "memory"
                    raise MediaRefused(why, size=_size(message.get("size")))
                case _:
                    yield message

    def kill(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            # what was not sent need not be
            with suppress(OSError):
                _opened(pipe).close()

    def _receive(self, seconds: float, *, more_bytes: int | None = None) -> Any:
        line = self._watched(lambda out: out.readline(LONGEST_LINE), seconds, more_bytes)
        try:
            return json.loads(line)
        except ValueError:
            # it has died of what it read: libraries that run out of memory may end a process
            raise MediaRefused("unreadable" if line else "memory") from None

    def _bytes(self, length: int, limits: ProbeLimits) -> bytes:
        data = self._watched(lambda out: out.read(length), PIECE_SECONDS, limits.max_memory_bytes)
        if len(data) != length:
            raise MediaRefused("unreadable")
        return data

    def _watched(self, take: Callable[[IO[bytes]], bytes], seconds: float, more_bytes: int | None) -> bytes:
        """What comes out of it, as long as it takes no longer, and no more memory, than it may."""
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
        """Never where the process limits itself."""
        return not LIMITS_MEMORY and more_bytes is not None and memory_of(self.pid) > self._own_bytes + more_bytes

    def _send(self, data: bytes) -> None:
        # one that is dead is noticed when its answer is read
        with suppress(OSError):
            _opened(self._process.stdin).write(data)
            _opened(self._process.stdin).flush()


class _Idle:
    """Processes that wait for the next file: starting one takes longer than most files do."""

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
    """Look into a file in a process of its own."""
    with _taken() as process:
        return process.probe(kind, size=size, limits=limits, read=read)


def draw(kind: MediaKind, *, size: int, limits: ProbeLimits, read: Read) -> Drawn:
    """Make what can be shown in place of a file, in a process of its own."""
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
    """What it says to be a picture or a film begins like one, or is not taken."""
    at, mark = MARKS.get((name, extension), (0, b""))
    if not mark or data[at : at + len(mark)] != mark:
        raise MediaRefused("unreadable")
    piece = Piece(name=name, extension=extension, data=data)
    return replace(drawn, poster=piece) if name == "poster" else replace(drawn, preview=piece)


def _pause(until: float) -> float:
    """Until the next look at a process: where it limits its own memory, only at the end of its time."""
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
