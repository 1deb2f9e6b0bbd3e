"""Write the output of a ComfyUI process to a rotating log file and keep its last lines in memory."""

import re
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic

from comfyrelay.system import files

NAME = "comfyui.log"
MAX_BYTES = 8 * 1024**2
# Number of rotated files; `comfyui.log.1` is the newest.
ROTATED_FILES = 3
LAST_LINES = 60
_LINE_END = re.compile(rb"(\r\n|\r|\n)")
_MAX_LINE_BYTES = 2000
# Messages of PyTorch on a machine without a usable GPU.
_NO_DRIVER = ("Found no NVIDIA driver", "No CUDA GPUs are available", "Torch not compiled with CUDA enabled")
LAST_LINES_MARK = "Its last lines:"
NO_DRIVER = (
    "It found no GPU that it can use. If this machine has none, start it with --cpu: add --cpu under Settings, "
    "ComfyUI, Arguments, or set COMFYRELAY_DESK_COMFYUI_ARGS=--cpu, or COMFYRELAY_WORKER_COMFYUI_ARGS=--cpu for a "
    "worker. If it has one, install its driver."
)


class ProcessLog:
    """Log of one process. On a full disk, lines are missing from the file, but the process keeps running."""

    def __init__(self, path: Path, *, max_bytes: int = MAX_BYTES, clock: Callable[[], float] = monotonic) -> None:
        self.path = path
        self.last_output_at = clock()
        self._max_bytes = max_bytes
        self._clock = clock
        # The last lines, each with the time when it was printed.
        self._lines: deque[tuple[float, str]] = deque(maxlen=LAST_LINES)
        self._rest = b""
        self._is_overwritten = False

    @property
    def last_lines(self) -> list[str]:
        return [line for _, line in self.timed_lines]

    @property
    def timed_lines(self) -> list[tuple[float, str]]:
        """The last lines, each with the time when it was printed."""
        return [*self._lines, *([(self.last_output_at, _readable(self._rest))] if self._rest.strip() else [])]

    def start(self, line: str) -> None:
        """Start the log of a new process. Lines of earlier processes are dropped."""
        self._lines.clear()
        self._rest = b""
        self.last_output_at = self._clock()
        self._append(f"--- {line}\n".encode())

    def write(self, piece: bytes) -> None:
        self._parse_lines(piece)
        self._append(piece)

    def _parse_lines(self, piece: bytes) -> None:
        self.last_output_at = self._clock()
        *parts, self._rest = _LINE_END.split(self._rest + piece)
        for line, end in zip(parts[::2], parts[1::2], strict=True):
            if line.strip():
                if self._is_overwritten and self._lines:
                    self._lines.pop()
                self._lines.append((self.last_output_at, _readable(line)))
            # Progress bars overwrite their line: keep only the last state.
            self._is_overwritten = end == b"\r"
        self._rest = self._rest[-_MAX_LINE_BYTES:]

    def _append(self, piece: bytes) -> None:
        with suppress(OSError):
            if self.path.is_file() and self.path.stat().st_size + len(piece) > self._max_bytes:
                self._rotate()
            with self.path.open("ab") as file:
                file.write(piece)

    def _rotate(self) -> None:
        places = [
            self.path,
            *(self.path.with_name(f"{self.path.name}.{number}") for number in range(1, ROTATED_FILES + 1)),
        ]
        for older, newer in zip(reversed(places), reversed(places[:-1]), strict=False):
            if newer.is_file():
                files.replace(newer, older)


def explain_exit(reason: str, lines: Sequence[str]) -> str:
    """Return why a process ended: advice on a missing driver, or else the last lines."""
    if any(text in line for line in lines for text in _NO_DRIVER):
        return f"{reason} {NO_DRIVER}"
    return f"{reason} {LAST_LINES_MARK} {' | '.join(lines[-3:])}" if lines else reason


def last_lines_in(path: Path) -> list[str]:
    """Return the last lines of a log file, or an empty list if it cannot be read."""
    log = ProcessLog(path)
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(path.stat().st_size - LAST_LINES * _MAX_LINE_BYTES, 0))
        log._parse_lines(file.read())
    return log.last_lines


def _readable(line: bytes) -> str:
    return line.decode(errors="replace").rstrip()[:_MAX_LINE_BYTES]
