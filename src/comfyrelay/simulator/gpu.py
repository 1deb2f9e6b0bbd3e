"""A GPU that several simulators share: its memory, which runs out, and its time, for which those that run wait.

It is a folder. Each process has a file in it, locked as long as the process lives, that says how much memory it holds
and whether it runs something: what a killed process held is free, as on a real GPU.
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
from comfyrelay.system.locks import lock

GIB = 1024**3
_SPIN_SECONDS = 0.0005


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedGpuOptions:
    """How a shared GPU behaves. A process takes `context_bytes` when it starts, `model_bytes` for each checkpoint that
    it has loaded, which takes `load_seconds`, and `pixel_bytes` for each pixel that it samples.

    Each step of a sampler takes `gpu_seconds` for each process that samples at that time, beside what it takes anyway.
    """

    folder: Path
    memory_bytes: int = 24 * GIB
    context_bytes: int = GIB // 2
    model_bytes: int = 2 * GIB
    pixel_bytes: int = 2048
    load_seconds: float = 0.0
    gpu_seconds: float = 0.0


def read_gpu(fields: dict[str, Any]) -> SimulatedGpuOptions:
    """A GPU from JSON."""
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
    """One process on a GPU, and what that holds of its memory."""

    def __init__(self, options: SimulatedGpuOptions) -> None:
        self.options = options
        self._path = options.folder / f"{uuid4().hex}.process"
        self._file: IO[str] | None = None
        # the one used last is the last
        self._models: dict[str, None] = {}
        # torch keeps what was used once
        self._working = 0
        self._is_running = False

    def open(self) -> None:
        self.options.folder.mkdir(parents=True, exist_ok=True)
        with self._alone():
            file = self._path.open("w+", encoding="ascii")
            lock(file)
            self._file = file
            self._write()

    def close(self) -> None:
        """As a process that ends: all is given back."""
        if self._file is not None:
            self._file.close()
            self._file = None
            files.remove(self._path, missing_ok=True)

    @property
    def torch_total(self) -> int:
        """What this process holds for models and work."""
        return len(self._models) * self.options.model_bytes + self._working

    @property
    def torch_free(self) -> int:
        return 0 if self._is_running else self._working

    @property
    def free(self) -> int:
        """What nobody on the GPU holds."""
        with self._alone():
            return self._unheld()

    @property
    def busy(self) -> int:
        """How many processes sample now."""
        with self._alone():
            return sum(is_running for _, is_running in self._holders())

    def has(self, model: str) -> bool:
        return model in self._models

    def load(self, model: str, *, pixels: int) -> bool:
        """Take memory for a model and what is to be done with it; older models of this process make room. Whether there
        was enough."""
        with self._alone():
            kept = {each: None for each in self._models if each != model} | {model: None}
            working = max(self._working, pixels * self.options.pixel_bytes)
            while len(kept) > 1 and not self._fits(len(kept), working):
                del kept[next(iter(kept))]
            if not self._fits(len(kept), working):
                # ComfyUI, too, lets go of everything then
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
        return more <= self._unheld()

    def _unheld(self) -> int:
        return max(self.options.memory_bytes - sum(held for held, _ in self._holders()), 0)

    def _write(self) -> None:
        if self._file is not None:
            self._file.seek(0)
            # always as long: who reads meanwhile sees the one or the other
            self._file.write(f"{self.options.context_bytes + self.torch_total:020d} {int(self._is_running)}")
            self._file.flush()

    def _holders(self) -> list[tuple[int, bool]]:
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
            # it ended, or begins just now
            return None
        # nobody has it: whoever did was killed
        with suppress(OSError):
            files.remove(path, missing_ok=True)
        return None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with (self.options.folder / "lock").open("a", encoding="ascii") as file:
            while True:
                try:
                    lock(file)
                    break
                except OSError:
                    time.sleep(_SPIN_SECONDS)
            yield
