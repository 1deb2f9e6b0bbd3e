"""Each ComfyUI process sees one of the GPUs that are visible to ComfyRelay."""

import json
import os
from pathlib import Path

import pytest

from comfyrelay.comfyui.processes import gpus
from comfyrelay.comfyui.processes.gpus import CPU, UNNAMED, find_gpus, query_nvidia_gpus

NVIDIA = "GPU-aaa, NVIDIA GeForce RTX 4090, 24564\nGPU-bbb, NVIDIA L4, 23034\n"
AMD = json.dumps(
    {
        "card0": {"Card Series": "Radeon RX 7900 XTX", "VRAM Total Memory (B)": "25753026560"},
        "card1": {"Card Series": "Radeon RX 7600"},
        "system": {"Driver version": "6.7"},
    }
)


@pytest.fixture(autouse=True)
def no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "import_module", lambda name: __import__("no_such_module_" + name))


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder for programs, which comes first in PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def tool(folder: Path, name: str, output: str) -> None:
    (folder / f"{name}.txt").write_text(output)
    (folder / name).write_text(f"#!/bin/sh\ncat '{folder / name}.txt'\n")
    (folder / name).chmod(0o755)


def test_nvidia_gpus_are_selected_by_uuid(tools: Path) -> None:
    tool(tools, "nvidia-smi", NVIDIA)
    first, second = find_gpus(environment={})
    assert (first.key, first.name, first.memory_bytes) == ("GPU-aaa", "NVIDIA GeForce RTX 4090", 24564 * 1024**2)
    assert second.variables == {"CUDA_VISIBLE_DEVICES": "GPU-bbb"}


class Nvml:
    """An NVIDIA driver whose first GPU has fallen off the bus."""

    class NVMLError(Exception):
        pass

    def nvmlInit(self) -> None: ...  # noqa: N802

    def nvmlShutdown(self) -> None: ...  # noqa: N802

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 3

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:  # noqa: N802
        if number == 0:
            raise self.NVMLError("GPU is lost")
        return number


def test_lost_gpu_does_not_hide_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "import_module", lambda _name: Nvml())
    assert query_nvidia_gpus(lambda _nvml, handle: handle) == [1, 2]


@pytest.mark.parametrize(
    ("visible", "seen"),
    [("1", ["GPU-bbb"]), ("GPU-a", ["GPU-aaa"]), ("1,0", ["GPU-bbb", "GPU-aaa"]), ("7", ["gpu"]), ("", ["gpu"])],
)
def test_hidden_gpus_remain_hidden(tools: Path, visible: str, seen: list[str]) -> None:
    tool(tools, "nvidia-smi", NVIDIA)
    environment = {"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert [gpu.key for gpu in find_gpus(environment=environment)] == seen


def test_cuda_device_index_is_passed_on_unchanged(tools: Path) -> None:
    """CUDA's first GPU is the fastest one, which may be the driver's second GPU."""
    tool(tools, "nvidia-smi", NVIDIA)
    [gpu] = find_gpus(environment={"CUDA_VISIBLE_DEVICES": "0"})
    assert (gpu.variables, gpu.name, gpu.memory_bytes) == ({"CUDA_VISIBLE_DEVICES": "0"}, None, None)
    # If all GPUs are visible, their order does not matter.
    assert [gpu.key for gpu in find_gpus(environment={"CUDA_VISIBLE_DEVICES": "0,1"})] == ["GPU-aaa", "GPU-bbb"]
    tool(tools, "nvidia-smi", "GPU-aaa, NVIDIA L4, 23034\nGPU-bbb, NVIDIA L4, 23034\nGPU-ccc, NVIDIA L4, 23034\n")
    found = find_gpus(environment={"CUDA_VISIBLE_DEVICES": "2,1"})
    assert [gpu.variables["CUDA_VISIBLE_DEVICES"] for gpu in found] == ["2", "1"]
    assert {(gpu.name, gpu.memory_bytes) for gpu in found} == {("NVIDIA L4", 23034 * 1024**2)}


def test_gpu_partitions_are_passed_on_one_by_one(tools: Path) -> None:
    tool(tools, "nvidia-smi", NVIDIA)
    found = find_gpus(environment={"CUDA_VISIBLE_DEVICES": "MIG-1,MIG-2"})
    assert [dict(gpu.variables) for gpu in found] == [
        {"CUDA_VISIBLE_DEVICES": "MIG-1"},
        {"CUDA_VISIBLE_DEVICES": "MIG-2"},
    ]


def test_amd_gpus_are_selected_by_index(tools: Path) -> None:
    tool(tools, "rocm-smi", AMD)
    first, second = find_gpus(environment={})
    assert (first.name, first.memory_bytes) == ("Radeon RX 7900 XTX", 25753026560)
    assert (second.variables, second.memory_bytes) == ({"HIP_VISIBLE_DEVICES": "1"}, None)


@pytest.mark.parametrize(
    ("environment", "seen"),
    [
        ({"HIP_VISIBLE_DEVICES": "1"}, [("1", {"HIP_VISIBLE_DEVICES": "1"})]),
        # HIP numbers the remaining GPUs starting at 0.
        ({"ROCR_VISIBLE_DEVICES": "1"}, [("1", {"HIP_VISIBLE_DEVICES": "0"})]),
        ({"ROCR_VISIBLE_DEVICES": "1,0", "HIP_VISIBLE_DEVICES": "1"}, [("0", {"HIP_VISIBLE_DEVICES": "1"})]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-f00", "HIP_VISIBLE_DEVICES": "0"}, [("GPU-f00", {"HIP_VISIBLE_DEVICES": "0"})]),
        # ROCm's libraries also respect CUDA_VISIBLE_DEVICES.
        ({"CUDA_VISIBLE_DEVICES": "1"}, [("1", {"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "1"})]),
        (
            {"ROCR_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"},
            [("1", {"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "0"})],
        ),
    ],
)
def test_amd_gpus_are_filtered_once_by_the_environment(
    tools: Path, environment: dict[str, str], seen: list[tuple[str, dict[str, str]]]
) -> None:
    tool(tools, "rocm-smi", AMD)
    assert [(gpu.key, gpu.variables) for gpu in find_gpus(environment=environment)] == seen


def test_unknown_gpus_count_as_one(tools: Path) -> None:
    tool(tools, "nvidia-smi", "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
    assert find_gpus(environment={}) == [UNNAMED]


def test_comfyui_without_gpus_gets_none(tools: Path) -> None:
    tool(tools, "nvidia-smi", NVIDIA)
    assert find_gpus(["--cpu"], {}) == [CPU]
    assert find_gpus(["--directml"], {}) == [UNNAMED]
