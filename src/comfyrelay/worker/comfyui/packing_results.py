"""Results of GPU sharing on disk, so that a restarted worker need not measure again."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from comfyrelay.domain.packing.state import PackingResult
from comfyrelay.system import atomic

log = structlog.get_logger(__name__)

FILE = "gpu-sharing.json"
FORMAT = 1
MAX_RESULTS = 500
# At most this is read. A larger file is not ours, and its truncated content is invalid.
MAX_BYTES = 1024**2

_Word = Annotated[str, Field(max_length=300)]
_Bytes = Annotated[int, Field(ge=0)]


class SavedResult(BaseModel):
    """The result for one workflow on one kind of GPU with one version of ComfyUI."""

    model_config = ConfigDict(frozen=True, strict=True)

    gpu: _Word
    gpu_bytes: _Bytes | None
    comfyui: _Word | None
    workflow: _Word
    processes: Annotated[int, Field(ge=1, le=64)]
    seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    is_limit: bool
    # Memory of one process: GPU memory for the workflow, and RAM.
    need_bytes: _Bytes
    machine_bytes: _Bytes | None

    @property
    def key(self) -> tuple[object, ...]:
        return self.gpu, self.gpu_bytes, self.comfyui, self.workflow

    @property
    def result(self) -> PackingResult:
        return PackingResult(processes=self.processes, seconds=self.seconds, is_limit=self.is_limit)


class _ResultFile(BaseModel):
    model_config = ConfigDict(strict=True)

    format: Annotated[int, Field(ge=FORMAT, le=FORMAT)] = FORMAT
    # Oldest result first.
    results: Annotated[list[SavedResult], Field(max_length=MAX_RESULTS)] = []


class PackingResults:
    """The saved results. Only one process uses the file, because the worker's folder is locked."""

    def __init__(self, path: Path, *, comfyui: str | None) -> None:
        """`comfyui` is the ComfyUI version."""
        self.comfyui = comfyui
        self._path = path
        self._results = {saved.key: saved for saved in self._read()}

    def of(self, gpu: str, gpu_bytes: int | None) -> Mapping[str, SavedResult]:
        """Return the results for a kind of GPU and this ComfyUI by workflow, oldest first."""
        wanted = (gpu, gpu_bytes, self.comfyui)
        return {saved.workflow: saved for key, saved in self._results.items() if key[:3] == wanted}

    def save(self, *results: SavedResult) -> None:
        """Save results as the newest, and drop the oldest. If this fails, the next start measures again."""
        for saved in results:
            self._results.pop(saved.key, None)
            self._results[saved.key] = saved
        self._results = dict(list(self._results.items())[-MAX_RESULTS:])
        content = _ResultFile(results=list(self._results.values())).model_dump_json(indent=1)
        try:
            atomic.write(self._path, content.encode(), mode=0o600)
        except OSError as error:
            log.warning("worker.packing_results_not_saved", file=str(self._path), why=error.strerror)

    def _read(self) -> list[SavedResult]:
        try:
            with self._path.open("rb") as file:
                return _ResultFile.model_validate_json(file.read(MAX_BYTES)).results
        except FileNotFoundError:
            return []
        except OSError as error:
            why = str(error.strerror)
        except ValidationError:
            why = "its content is invalid"
        log.warning("worker.packing_results_ignored", file=str(self._path), why=why)
        return []
