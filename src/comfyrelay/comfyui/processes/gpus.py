"""Find the GPUs of this machine and restrict a process to one of them."""

import csv
import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, Protocol, TypeVar

from comfyrelay.system.commands.environment import inherited_environment

T = TypeVar("T")

COMMAND_SECONDS = 10.0
MIB = 1024**2
# With these options, ComfyUI uses no GPU, or selects its device itself and ignores the variables below.
_OTHER_DEVICE_OPTIONS = ("--cpu", "--directml", "--oneapi-device-selector")
_NVIDIA = "CUDA_VISIBLE_DEVICES"
_NVIDIA_ORDER = "CUDA_DEVICE_ORDER"
_AMD = "HIP_VISIBLE_DEVICES"
# Filters AMD GPUs first; the other variable numbers the remaining GPUs starting at 0.
_AMD_FIRST = "ROCR_VISIBLE_DEVICES"


@dataclass(frozen=True, kw_only=True)
class LocalGpu:
    """One GPU. `variables` restrict a process to it."""

    key: str
    name: str | None = None
    memory_bytes: int | None = None
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class GpuProcesses:
    """One GPU and its ComfyUI processes."""

    key: str
    name: str | None
    memory_bytes: int | None
    # Base URLs of running and starting processes.
    processes: tuple[str, ...]


class GpuInventory(Protocol):
    """The GPUs of a machine and their processes. The packing algorithm adds and removes processes."""

    def gpus(self) -> Sequence[GpuProcesses]: ...

    async def add(self, gpu_key: str) -> str:
        """Start another process on this GPU and return its base URL once it responds.

        Raises `ComfyRelayError` if it does not respond.
        """
        ...

    async def remove(self, gpu_key: str, url: str) -> None:
        """Let the process finish its runs, then stop it, even if its address has changed by then.

        Raises `NotFound` if there is no such process.
        """
        ...


# Apple, Intel or none: there is only one GPU, or the GPUs cannot be distinguished.
UNNAMED = LocalGpu(key="gpu")
CPU = LocalGpu(key="cpu", name="CPU")


def find_gpus(arguments: Sequence[str] = (), environment: Mapping[str, str] = os.environ) -> list[LocalGpu]:
    """Return the GPUs that are visible to this process and usable by ComfyUI with these arguments. The list is never
    empty."""
    if "--cpu" in arguments:
        return [CPU]
    if any(argument.partition("=")[0] in _OTHER_DEVICE_OPTIONS for argument in arguments):
        return [UNNAMED]
    nvidia = _visible_nvidia(query_nvidia_gpus(_from_nvml) or _from_nvidia_smi(), environment)
    return nvidia or _visible_amd(_from_rocm_smi(), environment) or [UNNAMED]


def query_nvidia_gpus(read: Callable[[Any, Any], T]) -> list[T]:
    """Call `read` for each GPU that NVML lists. Return an empty list if NVML or its Python package is missing.

    A GPU that has fallen off its bus or does not support the query is skipped.
    """
    try:
        nvml: Any = import_module("pynvml")
        nvml.nvmlInit()
    except Exception:
        return []
    found: list[T] = []
    try:
        for number in range(nvml.nvmlDeviceGetCount()):
            with suppress(nvml.NVMLError):
                found.append(read(nvml, nvml.nvmlDeviceGetHandleByIndex(number)))
        return found
    except nvml.NVMLError:
        return []
    finally:
        nvml.nvmlShutdown()


def name_of(nvml: Any, handle: Any) -> str:
    return _text(nvml.nvmlDeviceGetName(handle))


def uuid_of(nvml: Any, handle: Any) -> str:
    return _text(nvml.nvmlDeviceGetUUID(handle))


def _from_nvml(nvml: Any, handle: Any) -> LocalGpu:
    return _nvidia(uuid_of(nvml, handle), name_of(nvml, handle), int(nvml.nvmlDeviceGetMemoryInfo(handle).total))


def _from_nvidia_smi() -> list[LocalGpu]:
    output = _run_tool("nvidia-smi", "--query-gpu=uuid,name,memory.total", "--format=csv,noheader,nounits")
    rows = [[cell.strip() for cell in row] for row in csv.reader(output.splitlines())]
    return [
        _nvidia(row[0], row[1], _parse_count(row[2], MIB))
        for row in rows
        if len(row) == 3 and row[0].startswith("GPU-")
    ]


def _from_rocm_smi() -> list[LocalGpu]:
    try:
        found = json.loads(_run_tool("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json"))
    except ValueError:
        return []
    return [
        LocalGpu(
            key=name.removeprefix("card"),
            name=card.get("Card Series") or card.get("Card series") or card.get("Card model"),
            memory_bytes=_parse_count(card.get("VRAM Total Memory (B)")),
        )
        for name, card in found.items()
        if name.startswith("card") and isinstance(card, dict)
    ]


def _nvidia(uuid: str, name: str, memory_bytes: int | None) -> LocalGpu:
    # By UUID, because CUDA and the driver number GPUs differently.
    return LocalGpu(key=uuid, name=name, memory_bytes=memory_bytes, variables={_NVIDIA: uuid})


def _visible_nvidia(gpus: Sequence[LocalGpu], environment: Mapping[str, str]) -> list[LocalGpu]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES selects, by number or UUID prefix."""
    if (visible := environment.get(_NVIDIA)) is None:
        return [*gpus]
    names = _split_list(visible)
    numbers = [int(name) for name in names if name.isdecimal() and int(name) < len(gpus)]
    # CUDA sorts GPUs by speed, NVML by bus position. A number is unambiguous if bus order was requested or all GPUs are
    # visible.
    is_unambiguous = environment.get(_NVIDIA_ORDER) == "PCI_BUS_ID" or len({*numbers}) == len(gpus)
    found = [gpus[number] if is_unambiguous else _nvidia_by_number(number, gpus) for number in numbers]
    found += [gpu for name in names if not name.isdecimal() for gpu in gpus if gpu.key.startswith(name)]
    # MIG slices are parts of a GPU.
    found += [LocalGpu(key=name, variables={_NVIDIA: name}) for name in names if name.startswith("MIG-")]
    return found


def _nvidia_by_number(number: int, gpus: Sequence[LocalGpu]) -> LocalGpu:
    """Return a GPU by its CUDA number. The GPU's model is known only if all GPUs have the same model."""
    models = {(gpu.name, gpu.memory_bytes) for gpu in gpus}
    name, memory_bytes = models.pop() if len(models) == 1 else (None, None)
    return LocalGpu(key=f"cuda:{number}", name=name, memory_bytes=memory_bytes, variables={_NVIDIA: str(number)})


def _visible_amd(gpus: Sequence[LocalGpu], environment: Mapping[str, str]) -> list[LocalGpu]:
    """Return the AMD GPUs that the environment selects.

    `ROCR_VISIBLE_DEVICES` filters the GPUs. `HIP_VISIBLE_DEVICES`, or else `CUDA_VISIBLE_DEVICES`, selects from the
    remaining ones, which are numbered starting at 0.
    """
    known = {gpu.key: gpu for gpu in gpus}
    filtered = [*gpus]
    if gpus and (first := environment.get(_AMD_FIRST)) is not None:
        filtered = [known.get(key, LocalGpu(key=key)) for key in _split_list(first)]
    second = environment.get(_AMD, environment.get(_NVIDIA))
    numbers = (
        range(len(filtered)) if second is None else [int(part) for part in _split_list(second) if part.isdecimal()]
    )
    # ROCm also reads CUDA's variable, so set that as well if it is in the environment.
    names = [_AMD, *([_NVIDIA] if _NVIDIA in environment else [])]
    return [
        replace(filtered[number], variables=dict.fromkeys(names, str(number)))
        for number in numbers
        if number < len(filtered)
    ]


def _split_list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _run_tool(*command: str) -> str:
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            command, capture_output=True, timeout=COMMAND_SECONDS, check=True, env=inherited_environment()
        )
        return done.stdout.decode(errors="replace")
    return ""


def _parse_count(text: object, unit: int = 1) -> int | None:
    return int(text) * unit if isinstance(text, str) and text.isdecimal() else None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
