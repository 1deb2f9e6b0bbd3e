"""A GPU shared by several simulators: limited memory, and time that concurrent runs share.

It is a folder with one file per process, locked while the process lives, that holds its memory use and whether it runs.
Memory of a killed process is free, as on a real GPU.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from dataclasses import fields as fields_of
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

from pydantic import TypeAdapter, ValidationError

from comfyrelay.errors import InvalidInput
from comfyrelay.system import files
from comfyrelay.system.folder_lock import lock

GIB = 1024**3
_SPIN_SECONDS = 0.0005


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedGpuOptions:
    """Behaviour of a shared GPU.

    A process takes `context_bytes` at its start, `model_bytes` for each loaded checkpoint, which takes `load_seconds`,
    and `pixel_bytes` for each sampled pixel. Each sampler step additionally takes `gpu_seconds` for each process that
    samples at the time.
    """

    folder: Path
    memory_bytes: int = 24 * GIB
    context_bytes: int = GIB // 2
    model_bytes: int = 2 * GIB
    pixel_bytes: int = 2048
    load_seconds: float = 0.0
    gpu_seconds: float = 0.0


def read_gpu(fields: dict[str, Any]) -> SimulatedGpuOptions:
    """Parse GPU options from JSON."""
    unknown = sorted(set(fields) - {each.name for each in fields_of(SimulatedGpuOptions)})
    if unknown or "folder" not in fields:
        known = ", ".join(each.name for each in fields_of(SimulatedGpuOptions) if each.name != "folder")
        wrong = f"not {', '.join(unknown)}" if unknown else "this one has no folder"
        raise InvalidInput(f"A GPU has a folder, and may have {known}; {wrong}.")
    try:
        return TypeAdapter(SimulatedGpuOptions).validate_python(fields)
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidInput(f"The gpu's {'.'.join(map(str, first['loc']))}: {first['msg']}.") from None


class SimulatedGpu:
    """One process on a GPU, and the memory it holds."""

    def __init__(self, options: SimulatedGpuOptions) -> None:
        self.options = options
        self._path = options.folder / f"{uuid4().hex}.process"
        self._file: IO[str] | None = None
        # most recently used last
        self._models: dict[str, None] = {}
        # torch keeps allocated memory
        self._working = 0
        self._is_running = False

    def open(self) -> None:
        self.options.folder.mkdir(parents=True, exist_ok=True)
        with self._locked():
            file = self._path.open("w+", encoding="ascii")
            lock(file)
            self._file = file
            self._write()

    def close(self) -> None:
        """Release everything, as at process exit."""
        if self._file is not None:
            self._file.close()
            self._file = None
            files.remove(self._path, missing_ok=True)

    @property
    def torch_total(self) -> int:
        """Memory that this process holds for models and work."""
        return len(self._models) * self.options.model_bytes + self._working

    @property
    def torch_free(self) -> int:
        return 0 if self._is_running else self._working

    @property
    def free(self) -> int:
        """Free memory of the GPU."""
        with self._locked():
            return self._free_bytes()

    @property
    def busy(self) -> int:
        """Number of processes that sample now."""
        with self._locked():
            return sum(is_running for _, is_running in self._usages())

    def has(self, model: str) -> bool:
        return model in self._models

    def load(self, model: str, *, pixels: int) -> bool:
        """Allocate memory for a model and its work, evicting older models of this process. Returns whether it fits."""
        with self._locked():
            kept = {each: None for each in self._models if each != model} | {model: None}
            working = max(self._working, pixels * self.options.pixel_bytes)
            while len(kept) > 1 and not self._fits(len(kept), working):
                del kept[next(iter(kept))]
            if not self._fits(len(kept), working):
                # ComfyUI unloads everything then, too
                self.unload()
                return False
            self._models, self._working = kept, working
            self._write()
            return True

    def unload(self) -> None:
        self._models, self._working = {}, 0
        self._write()

    @contextmanager
    def sampling(self) -> Iterator[None]:
        self._is_running = True
        self._write()
        try:
            yield
        finally:
            self._is_running = False
            self._write()

    def _fits(self, models: int, working: int) -> bool:
        more = models * self.options.model_bytes + working - self.torch_total
        return more <= self._free_bytes()

    def _free_bytes(self) -> int:
        return max(self.options.memory_bytes - sum(held for held, _ in self._usages()), 0)

    def _write(self) -> None:
        if self._file is not None:
            self._file.seek(0)
            # fixed length, so that concurrent readers see either value
            self._file.write(f"{self.options.context_bytes + self.torch_total:020d} {int(self._is_running)}")
            self._file.flush()

    def _usages(self) -> list[tuple[int, bool]]:
        return [found for each in self.options.folder.glob("*.process") if (found := self._read(each)) is not None]

    def _read(self, path: Path) -> tuple[int, bool] | None:
        try:
            with path.open("r+", encoding="ascii") as file:
                try:
                    lock(file)
                except OSError:
                    held, is_running = file.read().split()
                    return int(held), is_running == "1"
        except (OSError, ValueError):
            # it exited, or is just starting
            return None
        # unlocked: its owner was killed
        with suppress(OSError):
            files.remove(path, missing_ok=True)
        return None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.options.folder / "lock").open("a", encoding="ascii") as file:
            while True:
                try:
                    lock(file)
                    break
                except OSError:
                    time.sleep(_SPIN_SECONDS)
            yield
