"""Manage probe processes: start them on demand, and kill them at a timeout.

Their answers are not trusted, because a malicious file may take over such a process.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from typing import IO, Any, Final, get_args

from comfyrelay.errors import StorageUnavailable
from comfyrelay.media.info import (
    ImageEdit,
    MediaInfo,
    MediaRefused,
    ProbeLimits,
    ProbeTask,
    RefusalReason,
    Rendition,
    Renditions,
)
from comfyrelay.media_types import MediaKind
from comfyrelay.system.processes import LIMITS_MEMORY, memory_of

# Requested bytes follow a length of this size.
LENGTH_BYTES = 8
LONGEST_LINE = 4096
LARGEST_READ = 64 * 1024 * 1024
LARGEST_RENDITION = 4 * 1024 * 1024
LARGEST_EDITED = 256 * 1024 * 1024
# The maximum duration of transferring a rendition, a workflow or an edited image.
TRANSFER_SECONDS = 5.0
# File signatures with their offsets.
SIGNATURES: Final = {
    ("poster", "webp"): (8, b"WEBP"),
    ("preview", "mp4"): (4, b"ftyp"),
    ("preview", "webm"): (0, b"\x1aE\xdf\xa3"),
}
# Only a busy machine takes this long to start a process.
START_SECONDS = 120.0
# How often memory is checked if the system cannot limit it.
MEMORY_CHECK_SECONDS = 0.05
# Python and its libraries need these variables to start. None contains a secret.
ENVIRONMENT: Final = (
    *("PATH", "HOME", "LANG", "LC_ALL", "SYSTEMROOT", "TEMP", "TMP", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"),
    *("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "VIRTUAL_ENV"),
    # Windows needs these to find user packages.
    *("APPDATA", "USERPROFILE"),
)

Read = Callable[[int, int], bytes]


class ProbeProcess:
    """A probe process. Its calls block: use it in a thread."""

    def __init__(self) -> None:
        # An idle process has answered and can be reused.
        self.is_idle = False
        self._process = subprocess.Popen(
            # With -P, Python imports nothing from the current folder, which may be untrusted.
            [sys.executable, "-P", "-m", "comfyrelay.media.probe_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
        )
        self._initial_bytes = 0
        try:
            self._receive(START_SECONDS)
            if not LIMITS_MEMORY:
                self._initial_bytes = memory_of(self.pid)
        except MediaRefused:
            self.kill()
            raise StorageUnavailable("Media cannot be checked now: the process for it did not start.") from None

    @property
    def pid(self) -> int:
        return self._process.pid

    def probe(
        self, kind: MediaKind, *, size: int, limits: ProbeLimits, read: Read, is_whole: bool = False
    ) -> MediaInfo:
        """Return the properties of the file, or raise `MediaRefused`."""
        self._request("probe", kind, size, limits, whole=is_whole)
        for message in self._answers(limits.timeout_seconds, limits, read):
            match message:
                case {"found": [width, height, duration_seconds, frames]}:
                    self.is_idle = True
                    return MediaInfo(
                        kind=kind,
                        width=_count(width),
                        height=_count(height),
                        duration_seconds=float(duration_seconds) if isinstance(duration_seconds, int | float) else None,
                        frames=_count(frames),
                    )
                case _:
                    break
        raise MediaRefused("unreadable")

    def draw(self, kind: MediaKind, *, size: int, limits: ProbeLimits, read: Read) -> Renditions:
        """Return the renditions that were ready in time, or raise `MediaRefused` if there is no poster."""
        self._request("draw", kind, size, limits)
        renditions = Renditions()
        try:
            for message in self._answers(limits.drawing_seconds, limits, read):
                match message:
                    case {"piece": [name, extension, int(length)]} if 0 < length <= LARGEST_RENDITION:
                        renditions = _add_rendition(renditions, name, extension, self._receive_bytes(length, limits))
                    case {"done": True}:
                        self.is_idle = True
                        return renditions
                    case _:
                        break
            raise MediaRefused("unreadable")
        except MediaRefused:
            if renditions.poster is None:
                raise
            return renditions

    def read_workflow(self, *, size: int, limits: ProbeLimits, read: Read) -> bytes | None:
        """Return the workflow that ComfyUI embedded in the file, as unchecked JSON, or `None`. Raises
        `MediaRefused`."""
        self._request("workflow", "file", size, limits)
        for message in self._answers(limits.timeout_seconds, limits, read):
            match message:
                case {"workflow": None}:
                    self.is_idle = True
                    return None
                case {"workflow": int(length)} if 0 < length <= limits.max_workflow_bytes:
                    text = self._receive_bytes(length, limits)
                    self.is_idle = True
                    return text
                case _:
                    break
        raise MediaRefused("unreadable")

    def edit(self, edit: ImageEdit, *, size: int, limits: ProbeLimits, read: Read) -> bytes:
        """Return the edited image, unchecked. `size` includes the mask. Raises `MediaRefused`."""
        self._request("edit", "image", size, limits, edit=asdict(edit))
        for message in self._answers(limits.timeout_seconds, limits, read):
            match message:
                case {"edit": int(length)} if 0 < length <= LARGEST_EDITED:
                    image = self._receive_bytes(length, limits)
                    self.is_idle = True
                    return image
                case _:
                    break
        raise MediaRefused("unreadable")

    def _request(self, task: ProbeTask, kind: MediaKind, size: int, limits: ProbeLimits, **more: Any) -> None:
        self.is_idle = False
        job = {"task": task, "kind": kind, "size": size, "limits": asdict(limits), **more}
        self._send(json.dumps(job).encode() + b"\n")

    def _answers(self, seconds: float, limits: ProbeLimits, read: Read) -> Iterator[Any]:
        """Yield the answers of the process and serve its range requests. Raises `MediaRefused` on refusal or
        timeout."""
        seconds_left = seconds
        while True:
            began_at = time.monotonic()
            message = self._receive(seconds_left, more_bytes=limits.max_memory_bytes)
            # The time spent waiting for storage does not count.
            seconds_left -= time.monotonic() - began_at
            match message:
                case {"read": [int(start), int(length)]} if start >= 0 and 0 < length <= LARGEST_READ:
                    data = read(start, length)
                    self._send(len(data).to_bytes(LENGTH_BYTES) + data)
                case {"refused": why} if why in get_args(RefusalReason):
                    # After this refusal, the process may not have released all memory.
                    self.is_idle = why != "memory"
                    raise MediaRefused(why, size=_size(message.get("size")))
                case _:
                    yield message

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            # Closing tries to flush unsent data, and fails.
            with suppress(OSError):
                _require_pipe(pipe).close()

    def _receive(self, seconds: float, *, more_bytes: int | None = None) -> Any:
        line = self._read_watched(lambda out: out.readline(LONGEST_LINE), seconds, more_bytes)
        try:
            return json.loads(line)
        except ValueError:
            # An empty answer means that the process has crashed: libraries may abort when memory runs out.
            raise MediaRefused("unreadable" if line else "memory") from None

    def _receive_bytes(self, length: int, limits: ProbeLimits) -> bytes:
        data = self._read_watched(lambda out: out.read(length), TRANSFER_SECONDS, limits.max_memory_bytes)
        if len(data) != length:
            raise MediaRefused("unreadable")
        return data

    def _read_watched(self, take: Callable[[IO[bytes]], bytes], seconds: float, more_bytes: int | None) -> bytes:
        """Read output of the process within the limits on time and memory."""
        has_answered = threading.Event()
        reasons: list[RefusalReason] = []
        until = time.monotonic() + seconds

        def watch() -> None:
            while not has_answered.wait(_pause(until)):
                if time.monotonic() >= until:
                    reasons.append("time")
                elif self._is_too_large(more_bytes):
                    reasons.append("memory")
                if reasons:
                    self._process.kill()
                    return

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            output = take(_require_pipe(self._process.stdout))
        finally:
            has_answered.set()
            watcher.join()
        if not reasons and time.monotonic() >= until:
            # On a busy machine, the answer may arrive before the watcher wakes.
            reasons.append("time")
        if not reasons and self._is_too_large(more_bytes):
            reasons.append("memory")
        if reasons:
            raise MediaRefused(reasons[0])
        return output

    def _is_too_large(self, more_bytes: int | None) -> bool:
        """Whether the process uses too much memory. Not checked if the process limits itself."""
        return not LIMITS_MEMORY and more_bytes is not None and memory_of(self.pid) > self._initial_bytes + more_bytes

    def _send(self, data: bytes) -> None:
        # A dead process is detected when its answer is read.
        with suppress(OSError):
            _require_pipe(self._process.stdin).write(data)
            _require_pipe(self._process.stdin).flush()


# Processes are reused: starting one takes longer than reading most files. A deque is thread-safe.
_idle: deque[ProbeProcess] = deque()


def probe(kind: MediaKind, *, size: int, limits: ProbeLimits, read: Read, is_whole: bool = False) -> MediaInfo:
    """Probe a file in a separate process."""
    with _process() as process:
        return process.probe(kind, size=size, limits=limits, read=read, is_whole=is_whole)


def read_workflow(*, size: int, limits: ProbeLimits, read: Read) -> bytes | None:
    """Read the embedded workflow in a separate process."""
    with _process() as process:
        return process.read_workflow(size=size, limits=limits, read=read)


def edit(edit: ImageEdit, *, size: int, limits: ProbeLimits, read: Read) -> bytes:
    """Edit an image in a separate process."""
    with _process() as process:
        return process.edit(edit, size=size, limits=limits, read=read)


def draw(kind: MediaKind, *, size: int, limits: ProbeLimits, read: Read) -> Renditions:
    """Draw the poster and the preview in a separate process."""
    with _process() as process:
        return process.draw(kind, size=size, limits=limits, read=read)


@contextmanager
def _process() -> Iterator[ProbeProcess]:
    try:
        process = _idle.pop()
    except IndexError:
        process = ProbeProcess()
    try:
        yield process
    finally:
        if process.is_idle:
            _idle.append(process)
        else:
            process.kill()


def _add_rendition(renditions: Renditions, name: Any, extension: Any, data: bytes) -> Renditions:
    """Add a rendition, after checking that it starts with the signature of its type."""
    at, signature = SIGNATURES.get((name, extension), (0, b""))
    if not signature or data[at : at + len(signature)] != signature:
        raise MediaRefused("unreadable")
    return replace(renditions, **{name: Rendition(name=name, extension=extension, data=data)})


def _pause(until: float) -> float:
    """Return the seconds until the next memory check, or the whole timeout if the process limits itself."""
    seconds_left = max(0.0, until - time.monotonic())
    return seconds_left if LIMITS_MEMORY else min(seconds_left, MEMORY_CHECK_SECONDS)


def _require_pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and 0 <= value < 2**63 else None


def _size(value: Any) -> tuple[int, int] | None:
    match value:
        case [int(width), int(height)]:
            return width, height
        case _:
            return None
