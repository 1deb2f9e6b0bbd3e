"""A GPU shared by several simulators, with limited memory, and with time that concurrent runs share. The GPU is a
folder with one file per process. The file holds the memory use of the process and whether it runs, and is locked while
the process lives. As on a real GPU, a killed process frees its memory."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

from pydantic import BaseModel, ValidationError

from comfyrelay.errors import InvalidInput
from comfyrelay.simulator.misbehaviour import first_error
from comfyrelay.system import files
from comfyrelay.system.folder_lock import lock

GIB = 1024**3
_SPIN_SECONDS = 0.0005


class SimulatedGpuOptions(BaseModel, frozen=True, extra="forbid"):
    """Behaviour of a shared GPU.

    A process takes `context_bytes` at its start, `model_bytes` for each loaded checkpoint, which takes `load_seconds`,
    and `pixel_bytes` for each sampled pixel. Each sampler step additionally takes `gpu_seconds` for each process that
    is sampling at the time.
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
    try:
        return SimulatedGpuOptions.model_validate(fields)
    except ValidationError as error:
        known = ", ".join(SimulatedGpuOptions.model_fields)
        raise InvalidInput(f"gpu.{first_error(error)} A GPU has these fields: {known}.") from None


class SimulatedGpu:
    """One process on a GPU, and the memory that it holds."""

    def __init__(self, options: SimulatedGpuOptions) -> None:
        self.options = options
        self._path = options.folder / f"{uuid4().hex}.process"
        self._file: IO[str] | None = None
        # The most recently used model is last.
        self._models: dict[str, None] = {}
        # Memory that torch does not release after the run.
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
        """Bytes that no process holds."""
        with self._locked():
            return self._free_bytes()

    @property
    def busy(self) -> int:
        """Number of processes that are sampling now."""
        with self._locked():
            return sum(is_running for _, is_running in self._processes())

    def has(self, model: str) -> bool:
        return model in self._models

    def load(self, model: str, *, pixels: int) -> bool:
        """Allocate memory for a model and its work, evicting older models of this process. Returns whether it fits."""
        with self._locked():
            models = {loaded: None for loaded in self._models if loaded != model} | {model: None}
            working = max(self._working, pixels * self.options.pixel_bytes)
            while len(models) > 1 and not self._fits(len(models), working):
                del models[next(iter(models))]
            if not self._fits(len(models), working):
                # ComfyUI also unloads everything in this case.
                self.unload()
                return False
            self._models, self._working = models, working
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
        return max(self.options.memory_bytes - sum(held_bytes for held_bytes, _ in self._processes()), 0)

    def _write(self) -> None:
        if self._file is not None:
            self._file.seek(0)
            # The length is fixed, so that concurrent readers see either the old or the new value.
            self._file.write(f"{self.options.context_bytes + self.torch_total:020d} {int(self._is_running)}")
            self._file.flush()

    def _processes(self) -> list[tuple[int, bool]]:
        """Return the memory that each process holds, and whether it is sampling."""
        paths = self.options.folder.glob("*.process")
        return [process for path in paths if (process := self._read(path)) is not None]

    def _read(self, path: Path) -> tuple[int, bool] | None:
        try:
            with path.open("r+", encoding="ascii") as file:
                try:
                    lock(file)
                except OSError:
                    held_bytes, is_running = file.read().split()
                    return int(held_bytes), is_running == "1"
        except (OSError, ValueError):
            # The process exited, or is just starting.
            return None
        # The file is unlocked, so its owner was killed.
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
