"""Results of GPU sharing survive a restart, and a damaged file does not stop the worker."""

import json
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from comfyrelay.domain.queue.memory import GIB
from comfyrelay.worker.comfyui import packing_results
from comfyrelay.worker.comfyui.packing_results import MAX_RESULTS, PackingResults, SavedResult


def saved(workflow: str = "w", **other: Any) -> SavedResult:
    values = {
        "gpu": "NVIDIA H200",
        "gpu_bytes": 141 * GIB,
        "comfyui": "0.7.0",
        "workflow": workflow,
        "processes": 4,
        "seconds": 0.9,
        "is_limit": True,
        "need_bytes": 4 * GIB,
        "machine_bytes": 3 * GIB,
    }
    return SavedResult(**{**values, **other})


def results(folder: Path, comfyui: str | None = "0.7.0") -> PackingResults:
    return PackingResults(folder / packing_results.FILE, comfyui=comfyui)


def test_result_is_used_only_for_the_same_gpu_and_comfyui(tmp_path: Path) -> None:
    results(tmp_path).save(saved())
    assert results(tmp_path).of("NVIDIA H200", 141 * GIB) == {"w": saved()}
    assert results(tmp_path).of("NVIDIA H100", 141 * GIB) == {}
    assert results(tmp_path).of("NVIDIA H200", 80 * GIB) == {}
    assert results(tmp_path, "0.8.0").of("NVIDIA H200", 141 * GIB) == {}
    assert results(tmp_path, None).of("NVIDIA H200", 141 * GIB) == {}


def test_newest_result_is_last_and_replaces_the_older_one(tmp_path: Path) -> None:
    file = results(tmp_path)
    file.save(saved("a"), saved("b"))
    file.save(saved("a", processes=2))
    assert list(results(tmp_path).of("NVIDIA H200", 141 * GIB).values()) == [saved("b"), saved("a", processes=2)]


def test_oldest_results_are_dropped(tmp_path: Path) -> None:
    results(tmp_path).save(*(saved(f"{number:064x}") for number in range(MAX_RESULTS + 3)))
    kept = list(results(tmp_path).of("NVIDIA H200", 141 * GIB))
    assert len(kept) == MAX_RESULTS
    assert (kept[0], kept[-1]) == (f"{3:064x}", f"{MAX_RESULTS + 2:064x}")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\x00",
        b"[]",
        b'{"format": 2, "results": []}',
        b'{"format": 1, "results": [{}]}',
        json.dumps({"format": 1, "results": [saved().model_dump() | {"processes": 0}]}).encode(),
        json.dumps({"format": 1, "results": [saved().model_dump() | {"seconds": "fast"}]}).encode(),
        b'{"format": 1, "results": [' + b" " * packing_results.MAX_BYTES + b"]}",
    ],
)
def test_foreign_content_is_ignored_with_a_warning_and_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / packing_results.FILE
    path.write_bytes(content)
    with capture_logs() as logs:
        file = results(tmp_path)
    assert file.of("NVIDIA H200", 141 * GIB) == {}
    [warning] = logs
    assert (warning["event"], warning["log_level"]) == ("worker.packing_results_ignored", "warning")
    assert (warning["file"], warning["why"]) == (str(path), "its content is invalid")
    file.save(saved())
    assert results(tmp_path).of("NVIDIA H200", 141 * GIB) == {"w": saved()}


def test_missing_file_causes_no_warning(tmp_path: Path) -> None:
    with capture_logs() as logs:
        assert results(tmp_path).of("NVIDIA H200", 141 * GIB) == {}
    assert logs == []


def test_file_that_cannot_be_read_or_written_causes_a_warning(tmp_path: Path) -> None:
    (tmp_path / packing_results.FILE).mkdir()
    with capture_logs() as logs:
        results(tmp_path).save(saved())
    assert [log["event"] for log in logs] == ["worker.packing_results_ignored", "worker.packing_results_not_saved"]
    assert [path.name for path in tmp_path.iterdir()] == [packing_results.FILE]
