"""A process that reads media within limits and may be killed.

A request is a line of JSON on standard input. The answer on standard output contains range requests for the file, each
answered with a length and that many bytes, and then the result. For a drawing, each piece is sent as a line and that
many bytes before the result.
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

# One read of this size contains the header of nearly every file.
BLOCK_BYTES = 1024 * 1024
LENGTH_BYTES = 8


def main() -> None:
    # Ctrl-C is meant for the server, which may still need this process
    signals.ignore_ctrl_c()
    asking = sys.stdin.buffer
    answering = os.fdopen(os.dup(1), "wb")
    # keep library output away from the answers
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    # no core dumps, no files
    processes.forbid_files()
    own_bytes = processes.own_memory()
    _send(answering, {"ready": True})
    for line in asking:
        job = json.loads(line)
        limits = ProbeLimits(**job["limits"])
        processes.limit_memory(own_bytes + limits.max_memory_bytes)
        # exit if the server is killed
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
        # both libraries raise almost any exception for a broken file
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
