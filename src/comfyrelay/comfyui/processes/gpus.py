"""Which GPUs this machine has, and how a process is shown one of them only."""

import csv
import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, TypeVar

T = TypeVar("T")

ASK_SECONDS = 10.0
MIB = 1024**2
# What ComfyUI is started with where it is not to use one of these GPUs.
_WITHOUT_GPU = ("--cpu", "--directml", "--oneapi-device-selector")
_NVIDIA = "CUDA_VISIBLE_DEVICES"
_NVIDIA_ORDER = "CUDA_DEVICE_ORDER"
_AMD = "HIP_VISIBLE_DEVICES"
# What this shows of AMD's is counted anew by the other one.
_AMD_FIRST = "ROCR_VISIBLE_DEVICES"


@dataclass(frozen=True, kw_only=True)
class LocalGpu:
    """`variables` show a process this one and no other."""

    key: str
    name: str | None = None
    memory_bytes: int | None = None
    variables: Mapping[str, str] = field(default_factory=dict)


# Apple's, Intel's, or none: there is one, or nobody here can tell them apart.
UNNAMED = LocalGpu(key="gpu")
CPU = LocalGpu(key="cpu", name="CPU")


def find_gpus(arguments: Sequence[str] = (), environment: Mapping[str, str] = os.environ) -> list[LocalGpu]:
    """Those that a ComfyUI with these arguments could use, of those that this process may see: at least one."""
    if "--cpu" in arguments:
        return [CPU]
    if any(each.partition("=")[0] in _WITHOUT_GPU for each in arguments):
        return [UNNAMED]
    nvidia = _visible_nvidia(of_each_nvidia(_from_nvml) or _from_nvidia_smi(), environment)
    return nvidia or _visible_amd(_from_rocm_smi(), environment) or [UNNAMED]


def of_each_nvidia(read: Callable[[Any, Any], T]) -> list[T]:
    """What NVML tells of each GPU; nothing where there is no NVML, or no package that speaks to it. One that has fallen
    off its bus, or does not tell this, hides none of the others."""
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


def _from_nvml(nvml: Any, handle: Any) -> LocalGpu:
    memory = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    return _nvidia(_text(nvml.nvmlDeviceGetUUID(handle)), name_of(nvml, handle), memory)


def _from_nvidia_smi() -> list[LocalGpu]:
    said = _ask("nvidia-smi", "--query-gpu=uuid,name,memory.total", "--format=csv,noheader,nounits")
    rows = [[cell.strip() for cell in row] for row in csv.reader(said.splitlines())]
    return [_nvidia(row[0], row[1], _whole(row[2], MIB)) for row in rows if len(row) == 3 and row[0].startswith("GPU-")]


def _from_rocm_smi() -> list[LocalGpu]:
    try:
        found = json.loads(_ask("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json"))
    except ValueError:
        return []
    gpus = [(name, each) for name, each in found.items() if name.startswith("gpu") and isinstance(each, dict)]
    return [
        LocalGpu(
            key=name.removeprefix("gpu"),
            name=each.get("GpuProcesses Series") or each.get("GpuProcesses series") or each.get("GpuProcesses model"),
            memory_bytes=_whole(each.get("VRAM Total Memory (B)")),
        )
        for name, each in gpus
    ]


def _nvidia(uuid: str, name: str, memory_bytes: int | None) -> LocalGpu:
    # by its identity: numbers are counted otherwise by CUDA than by the driver
    return LocalGpu(key=uuid, name=name, memory_bytes=memory_bytes, variables={_NVIDIA: uuid})


def _visible_nvidia(gpus: Sequence[LocalGpu], environment: Mapping[str, str]) -> list[LocalGpu]:
    """Those that whoever started us lets us see: by their numbers, or the beginning of their identities."""
    if (shown := environment.get(_NVIDIA)) is None:
        return [*gpus]
    words = _words(shown)
    numbers = [int(each) for each in words if each.isdecimal() and int(each) < len(gpus)]
    # CUDA counts the fastest first, NVML by their places: a number is known if that was asked for, or if all are shown
    is_known = environment.get(_NVIDIA_ORDER) == "PCI_BUS_ID" or len({*numbers}) == len(gpus)
    found = [gpus[number] if is_known else _nvidia_by_number(number, gpus) for number in numbers]
    found += [gpu for word in words if not word.isdecimal() for gpu in gpus if gpu.key.startswith(word)]
    # a part of one
    found += [LocalGpu(key=each, variables={_NVIDIA: each}) for each in words if each.startswith("MIG-")]
    return found


def _nvidia_by_number(number: int, gpus: Sequence[LocalGpu]) -> LocalGpu:
    """As CUDA counts them; what it is, is known where all are the same."""
    models = {(each.name, each.memory_bytes) for each in gpus}
    name, memory_bytes = models.pop() if len(models) == 1 else (None, None)
    return LocalGpu(key=f"cuda:{number}", name=name, memory_bytes=memory_bytes, variables={_NVIDIA: str(number)})


def _visible_amd(gpus: Sequence[LocalGpu], environment: Mapping[str, str]) -> list[LocalGpu]:
    """The same for AMD's: of those that the first variable leaves, the second, or CUDA's, shows some by their new
    numbers."""
    known = {each.key: each for each in gpus}
    left = [*gpus]
    if gpus and (first := environment.get(_AMD_FIRST)) is not None:
        left = [known.get(each, LocalGpu(key=each)) for each in _words(first)]
    second = environment.get(_AMD, environment.get(_NVIDIA))
    numbers = range(len(left)) if second is None else [int(each) for each in _words(second) if each.isdecimal()]
    # which would be looked at beside the one that is AMD's own
    names = [_AMD, *([_NVIDIA] if _NVIDIA in environment else [])]
    return [
        replace(left[number], variables=dict.fromkeys(names, str(number))) for number in numbers if number < len(left)
    ]


def _words(shown: str) -> list[str]:
    return [each.strip() for each in shown.split(",") if each.strip()]


def _ask(*command: str) -> str:
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, timeout=ASK_SECONDS, check=True)
        return done.stdout.decode(errors="replace")
    return ""


def _whole(text: object, unit: int = 1) -> int | None:
    return int(text) * unit if isinstance(text, str) and text.isdecimal() else None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
