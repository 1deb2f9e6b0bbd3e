"""What is written down of each process: for those that only look, and for the next life of whoever started it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from comfyrelay.comfyui.processes.log import NAME as LOG_NAME
from comfyrelay.system import atomic
from comfyrelay.system.commands import detached

FILE = "process.json"
# In the folder of a worker.
FOLDER = "comfyui"


@dataclass(frozen=True, kw_only=True)
class ProcessNote:
    name: str
    url: str
    gpu: str
    state: str
    reason: str | None
    restarts: int
    # who must be gone before another may begin here, by process id, with when each was started
    processes: Mapping[str, float]
    # whether it shares its GPU through NVIDIA MPS
    mps: bool = False

    @property
    def state_now(self) -> str:
        """What was written down last, unless whoever wrote it is gone."""
        return self.state if self.is_alive or self.state in ("waiting", "given up", "stopped") else "gone"

    @property
    def is_alive(self) -> bool:
        return bool(self.living)

    @property
    def living(self) -> Sequence[tuple[int, float]]:
        known = [(int(pid), started) for pid, started in self.processes.items()]
        return [(pid, started) for pid, started in known if detached.is_process(pid=pid, started=started)]


def write(folder: Path, note: ProcessNote) -> None:
    atomic.write(folder / FILE, json.dumps(asdict(note)).encode(), mode=0o600)


def read(folder: Path) -> ProcessNote | None:
    try:
        return ProcessNote(**json.loads((folder / FILE).read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def find(*roots: Path) -> Iterator[tuple[ProcessNote, Path]]:
    """All that workers below these folders have written down, with their logs."""
    for root in dict.fromkeys(roots):
        for path in sorted(root.glob(f"*/{FOLDER}/*/{FILE}")):
            if (note := read(path.parent)) is not None:
                yield note, path.parent / LOG_NAME
