"""A process that looks into media and does nothing else: it reads what it is given, within limits, and may be killed.

It is asked by a line of JSON on its standard input, and answers on its standard output: with ranges of the file that it
wants to read, which come as a length and that many bytes, and at last with what it found. Asked to draw, it answers
with each piece, as a line and that many bytes, before it says that it is done.
"""

import io
import json
import os
import sys
from typing import Any, BinaryIO

from comfyrelay.media.containers import read_container
from comfyrelay.media.images import read_image
from comfyrelay.media.info import MediaInfo, MediaRefused, Piece, ProbeLimits
from comfyrelay.media.posters import draw
from comfyrelay.media.ranged_file import RangedFile
from comfyrelay.system import processes, signals

# One read of this size finds the header of nearly every file.
BLOCK_BYTES = 1024 * 1024
LENGTH_BYTES = 8


def main() -> None:
    # whoever presses Ctrl-C means the server, which may still need this
    signals.ignore_ctrl_c()
    asking = sys.stdin.buffer
    answering = os.fdopen(os.dup(1), "wb")
    # what libraries print is no answer
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    # for good: no dump, no file
    processes.forbid_files()
    own_bytes = processes.own_memory()
    _send(answering, {"ready": True})
    for line in asking:
        job = json.loads(line)
        limits = ProbeLimits(**job["limits"])
        processes.limit_memory(own_bytes + limits.max_memory_bytes)
        # should the server be killed meanwhile, nobody else ends this
        processes.limit_time(limits.drawing_seconds if job["draws"] else limits.timeout_seconds)
        _send(answering, _answer(job, limits, asking, answering))


def _answer(job: dict[str, Any], limits: ProbeLimits, asking: BinaryIO, answering: BinaryIO) -> dict[str, Any]:
    def fetch(start: int, length: int) -> bytes:
        _send(answering, {"read": [start, length]})
        return asking.read(int.from_bytes(asking.read(LENGTH_BYTES)))

    def give(piece: Piece) -> None:
        _send(answering, {"piece": [piece.name, piece.extension, len(piece.data)]})
        answering.write(piece.data)

    try:
        with io.BufferedReader(RangedFile(fetch, size=job["size"]), BLOCK_BYTES) as file:
            if job["draws"]:
                draw(file, job["kind"], limits, give)
                return {"done": True}
            info = _read(file, job["kind"], limits)
    except MediaRefused as error:
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


def _send(answering: BinaryIO, message: dict[str, Any]) -> None:
    answering.write(json.dumps(message).encode() + b"\n")
    answering.flush()


if __name__ == "__main__":
    main()
