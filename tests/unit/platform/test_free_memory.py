"""In a container, free memory is the rest of its limit; otherwise it is the machine's free memory."""

from pathlib import Path

import pytest

from comfyrelay.system.spare_capacity import free_memory_bytes, free_within_limits

STAT = "anon 5\ninactive_file 300\n"
CONTAINERS = {
    "second": (
        "0::/docker/1\n",
        {"docker/1/memory.max": "1000\n", "docker/1/memory.current": "900\n", "docker/1/memory.stat": STAT},
    ),
    "second, own end only": ("0::/\n", {"memory.max": "1000", "memory.current": "900", "memory.stat": STAT}),
    "first": (
        "4:memory:/\n",
        {
            "memory/memory.limit_in_bytes": "1000",
            "memory/memory.usage_in_bytes": "900",
            "memory/memory.stat": "inactive_file 1\ntotal_inactive_file 300",
        },
    ),
}


def free_bytes(folder: Path, own: str, files: dict[str, str]) -> list[int]:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "own").write_text(own)
    return free_within_limits(folder, folder / "own")


@pytest.mark.parametrize("version", CONTAINERS)
def test_container_memory_is_its_limit_minus_use_without_file_cache(tmp_path: Path, version: str) -> None:
    assert free_bytes(tmp_path, *CONTAINERS[version]) == [400]


@pytest.mark.parametrize("files", [{"memory.max": "max", "memory.current": "1"}, {"memory.max": "5"}, {}])
def test_machine_memory_counts_without_a_limit(tmp_path: Path, files: dict[str, str]) -> None:
    assert free_bytes(tmp_path, "0::/\n1:memory:/\n", files) == []
    assert free_within_limits(tmp_path, tmp_path / "missing") == []
    assert free_memory_bytes() > 0
