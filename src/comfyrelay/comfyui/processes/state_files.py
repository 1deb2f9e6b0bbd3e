"""State file of each managed process, for the CLI and for the next start of its supervisor."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from comfyrelay.comfyui.processes.log import NAME as LOG_NAME
from comfyrelay.system import atomic
from comfyrelay.system.commands import detached

FILE = "process.json"
# Folder of all processes in a worker's data folder.
FOLDER = "comfyui"


@dataclass(frozen=True, kw_only=True)
class ProcessRecord:
    name: str
    url: str
    gpu: str
    state: str
    reason: str | None
    restarts: int
    # Start times by process id of processes that must have exited before another may start in this folder.
    processes: Mapping[str, float]
    # Whether the process shares its GPU through NVIDIA MPS.
    mps: bool = False

    @property
    def state_now(self) -> str:
        """The recorded state, or "gone" if the processes have exited."""
        return self.state if self.is_alive or self.state in ("waiting", "given up", "stopped") else "gone"

    @property
    def is_alive(self) -> bool:
        return bool(self.alive)

    @property
    def alive(self) -> Sequence[tuple[int, float]]:
        known = [(int(pid), started) for pid, started in self.processes.items()]
        return [(pid, started) for pid, started in known if detached.is_running(pid=pid, started=started)]


def write(folder: Path, record: ProcessRecord) -> None:
    atomic.write(folder / FILE, json.dumps(asdict(record)).encode(), mode=0o600)


def read(folder: Path) -> ProcessRecord | None:
    try:
        return ProcessRecord(**json.loads((folder / FILE).read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def find(*roots: Path) -> Iterator[tuple[ProcessRecord, Path]]:
    """Yield the records of all workers in these folders, with their log files."""
    for root in dict.fromkeys(roots):
        for path in sorted(root.glob(f"*/{FOLDER}/*/{FILE}")):
            if (record := read(path.parent)) is not None:
                yield record, path.parent / LOG_NAME
