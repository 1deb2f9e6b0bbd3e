"""A process that looks into media and does nothing else: it reads what it is given, within limits, and may be killed.

It is asked by a line of JSON on its standard input, and answers on its standard output: with ranges of the file that it
wants to read, which come as a length and that many bytes, and at last with what it found.
"""

import io
import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from comfyrelay.storage.containers import read_container
from comfyrelay.storage.images import read_image
from comfyrelay.storage.media_info import MediaInfo, ProbeLimits, Refused
from comfyrelay.storage.ranged import RangedFile

try:
    import resource
except ImportError:  # on Windows, where only time and headers limit it
    resource = None  # type: ignore[assignment]

# One read of this size finds the header of nearly every file.
BLOCK_BYTES = 1024 * 1024
LENGTH_BYTES = 8


def main() -> None:
    # whoever presses Ctrl-C means the server, which may still need this
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asking = sys.stdin.buffer
    answering = os.fdopen(os.dup(1), "wb", buffering=0)
    # what libraries print is no answer
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    own_bytes = _limit_process()
    _send(answering, {"ready": True})
    for line in asking:
        job = json.loads(line)
        limits = ProbeLimits(**job["limits"])
        _limit_probe(limits, own_bytes)
        _send(answering, _answer(job, limits, asking, answering))


def _answer(job: dict[str, Any], limits: ProbeLimits, asking: BinaryIO, answering: BinaryIO) -> dict[str, Any]:
    def fetch(start: int, length: int) -> bytes:
        _send(answering, {"read": [start, length]})
        return asking.read(int.from_bytes(asking.read(LENGTH_BYTES)))

    try:
        with io.BufferedReader(RangedFile(fetch, size=job["size"]), BLOCK_BYTES) as file:
            info = _read(file, job["kind"], limits)
    except Refused as error:
        return {"refused": error.why, "size": error.size}
    except MemoryError:
        return {"refused": "memory"}
    except Exception:
        # both libraries raise nearly anything for a broken file
        return {"refused": "unreadable"}
    found = (info.width, info.height, info.duration_seconds, info.frames)
    return {"found": found}


def _read(file: BinaryIO, kind: Any, limits: ProbeLimits) -> MediaInfo:
    return read_image(file, limits) if kind == "image" else read_container(file, kind, limits)


def _limit_process() -> int:
    """For good: no dump, no file. Returns how much room the libraries take, in bytes."""
    if resource is None:
        return 0
    for name in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
        resource.setrlimit(name, (0, 0))
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    return 0


def _limit_probe(limits: ProbeLimits, own_bytes: int) -> None:
    if resource is None:
        return
    # macOS refuses this limit: time and headers are left
    with suppress(ValueError, OSError):
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (own_bytes + limits.max_memory_bytes, most))
    # should the server be killed meanwhile, nobody else ends this
    used = resource.getrusage(resource.RUSAGE_SELF)
    with suppress(ValueError, OSError):
        seconds = int(used.ru_utime + used.ru_stime + limits.timeout_seconds) + 2
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def _send(answering: BinaryIO, message: dict[str, Any]) -> None:
    answering.write(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main()
