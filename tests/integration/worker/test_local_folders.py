"""If the folder of a ComfyUI is unknown, the worker reports once that it leaves job files there."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from comfyrelay.simulator import Simulator
from comfyrelay.worker.comfyui import local_folders
from comfyrelay.worker.comfyui.local_folders import LocalFolders
from comfyrelay.worker.comfyui.servers import Servers
from comfyrelay.worker.settings import WorkerSettings


def events(logs: list[dict[str, object]]) -> list[object]:
    return [entry["event"] for entry in logs if str(entry["event"]).startswith(("worker.job", "worker.comfyui_f"))]


async def find_twice(settings: WorkerSettings) -> tuple[list[Path], list[object]]:
    servers = Servers(settings, on_change=lambda: None)
    await servers.open()
    try:
        folders = LocalFolders(settings, servers)
        with capture_logs() as logs:
            await folders.find()
            await folders.find()
        assert (folders.unknown() == []) == ("worker.job_files_stay" not in events([dict(entry) for entry in logs]))
        return folders.known(), events([dict(entry) for entry in logs])
    finally:
        await servers.close()


async def test_unknown_folder_is_reported_once(tmp_path: Path) -> None:
    async with Simulator() as simulator:
        settings = WorkerSettings(comfyui_base_url=[simulator.url])
        assert await find_twice(settings) == ([], ["worker.job_files_stay"])
        configured = WorkerSettings(comfyui_base_url=[simulator.url], comfyui_folders=[tmp_path])
        assert await find_twice(configured) == ([tmp_path], [])
        assert await find_twice(WorkerSettings(comfyui_base_url=[simulator.url], tidy_comfyui=False)) == ([], [])


async def test_found_folder_is_cleaned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_folders, "find_base", lambda _url: tmp_path)
    async with Simulator() as simulator:
        settings = WorkerSettings(comfyui_base_url=[simulator.url])
        assert await find_twice(settings) == ([tmp_path], ["worker.comfyui_folder_found"])
