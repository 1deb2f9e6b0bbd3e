"""A process that reads media within limits and may be killed.

A request is a line of JSON on standard input. This process answers on standard output, one line of JSON per message. It
requests ranges of the file, which arrive on standard input as a length and that many bytes, and then sends the result.
Each rendition is sent before the result, as a line and the bytes of the file. The bytes of a workflow (as JSON) or an
edited image follow the result.
"""

import io
import json
import os
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

from comfyrelay.json_size import has_more_values
from comfyrelay.media.containers import measure_container, read_container
from comfyrelay.media.images import edit_image, read_image
from comfyrelay.media.info import ImageEdit, MediaRefused, ProbeLimits, Rendition
from comfyrelay.media.posters import draw
from comfyrelay.system import processes, signals

# One read of this size contains the header of nearly every file.
BLOCK_BYTES = 1024 * 1024
LENGTH_BYTES = 8

# The last message, and the bytes that follow it.
Result = tuple[dict[str, Any], bytes]


def main() -> None:
    # Only the server should handle Ctrl-C, and it may still need this process.
    signals.ignore_ctrl_c()
    requests = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    # Library output must not mix with the answers.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    processes.forbid_files()
    own_bytes = processes.own_memory()
    _send(answers, {"ready": True})
    for line in requests:
        job = json.loads(line)
        limits = ProbeLimits(**job["limits"])
        processes.limit_memory(own_bytes + limits.max_memory_bytes)
        # The time limit ends this process if the server was killed.
        processes.limit_time(limits.drawing_seconds if job["task"] == "draw" else limits.timeout_seconds)
        answer, workflow = _answer(job, limits, requests, answers)
        _send(answers, answer, workflow)


def _answer(job: dict[str, Any], limits: ProbeLimits, requests: BinaryIO, answers: BinaryIO) -> Result:
    def fetch(start: int, length: int) -> bytes:
        _send(answers, {"read": [start, length]})
        return requests.read(int.from_bytes(requests.read(LENGTH_BYTES)))

    def give(rendition: Rendition) -> None:
        _send(answers, {"piece": [rendition.name, rendition.extension, len(rendition.data)]})
        answers.write(rendition.data)

    kind = job["kind"]
    try:
        with io.BufferedReader(_RangedFile(fetch, size=job["size"]), BLOCK_BYTES) as file:
            if job["task"] == "draw":
                draw(file, kind, limits, give)
                return {"done": True}, b""
            if job["task"] in ("edit", "workflow"):
                found = _workflow(file, limits) if job["task"] == "workflow" else _edit(file, job["edit"], limits)
                return {job["task"]: len(found) or None}, found
            if kind == "image":
                info = read_image(file, limits)
            else:
                info = (measure_container if job["whole"] else read_container)(file, kind, limits)
    except MediaRefused as error:
        return {"refused": error.why, "size": error.size}, b""
    except MemoryError:
        return {"refused": "memory"}, b""
    except Exception:
        # Both libraries raise almost any exception for a broken file.
        return {"refused": "unreadable"}, b""
    return {"found": (info.width, info.height, info.duration_seconds, info.frames)}, b""


def _edit(file: BinaryIO, wanted: dict[str, Any], limits: ProbeLimits) -> bytes:
    edit = ImageEdit(**wanted)
    both = file.read()
    size = len(both) - edit.mask_bytes
    return edit_image(both[:size], both[size:], edit, limits)


def _workflow(file: BinaryIO, limits: ProbeLimits) -> bytes:
    """Return the embedded graph, otherwise the workflow of the editor, as JSON; empty if there is none."""
    # Most processes never need this module, and its imports take as long as starting a process.
    from comfyrelay.comfyui.editor.embedded import embedded_in  # noqa: PLC0415

    found = embedded_in(file)
    if found is None:
        return b""
    text = json.dumps(found.graph or found.workflow).encode()
    if len(text) > limits.max_workflow_bytes or has_more_values(text, limits.max_workflow_values):
        raise MediaRefused("workflow")
    return text


def _send(answers: BinaryIO, message: dict[str, Any], data: bytes = b"") -> None:
    answers.write(json.dumps(message).encode() + b"\n" + data)
    answers.flush()


class _RangedFile(io.RawIOBase):
    """A seekable file that fetches ranges on demand."""

    def __init__(self, fetch: Callable[[int, int], bytes], *, size: int) -> None:
        self._fetch = fetch
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise OSError("The position is before the first byte.")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # BufferedReader passes nothing else.
        wanted = min(len(buffer), self._size - self._position)
        if wanted <= 0:
            return 0
        data = self._fetch(self._position, wanted)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def readall(self) -> bytes:
        """Read the rest in blocks. By default, each fetch has only 8 KiB."""
        return b"".join(iter(lambda: self.read(BLOCK_BYTES), b""))


if __name__ == "__main__":
    main()
