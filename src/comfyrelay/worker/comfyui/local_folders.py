"""The folders of the ComfyUI servers: configured, or found by the address of a server on this machine."""

import asyncio
from pathlib import Path

import structlog

from comfyrelay.comfyui.processes.listening import find_base
from comfyrelay.worker.comfyui.servers import Servers
from comfyrelay.worker.settings import WorkerSettings

log = structlog.get_logger(__name__)

# Search again, because a server that was not found may not have started yet.
RETRY_SECONDS = 60.0
FILES_STAY = (
    "Job files stay in `input/comfyrelay` and `output/comfyrelay` of this ComfyUI, because its folder is not known "
    "here. Set COMFYRELAY_WORKER_COMFYUI_FOLDERS, or on a desk COMFYRELAY_DESK_COMFYUI_FOLDERS, to the folder that "
    "contains `input` and `output`. If it runs on another machine, delete them there occasionally, while no job is "
    "running."
)


class LocalFolders:
    def __init__(self, settings: WorkerSettings, servers: Servers) -> None:
        self._settings = settings
        self._servers = servers
        self._found: dict[str, Path] = {}
        self._reported: set[str] = set()

    def known(self) -> list[Path]:
        """Return the folders that were configured or found."""
        folders = [self._settings.folder_of(url) or self._found.get(url) for url in self._settings.comfyui_base_url]
        return [folder for folder in folders if folder is not None]

    def found(self) -> list[Path]:
        """Return the folders that were found rather than configured. Users also work in these folders."""
        return list(self._found.values())

    def unknown(self) -> list[str]:
        """Return the URLs of servers whose folder was not found, so that job files are not deleted there."""
        return sorted(self._reported.difference(self._found))

    async def find(self) -> None:
        """Find the folders of servers that respond. Report once for each server whose folder is not known."""
        settings = self._settings
        if not settings.tidy_comfyui or settings.managed is not None or settings.comfyui_folders:
            return
        for name, client in self._servers.own.items():
            url = client.url
            if url in self._found or self._servers.unavailable_reason(name) is not None:
                continue
            base = await asyncio.to_thread(find_base, url)
            if base is not None:
                self._found[url] = base
                log.info("worker.comfyui_folder_found", server=url, folder=str(base))
            elif url not in self._reported:
                self._reported.add(url)
                log.warning("worker.job_files_stay", server=url, what_to_do=FILES_STAY)

    async def keep(self) -> None:
        """Search again at intervals, until cancelled."""
        while True:
            await asyncio.sleep(RETRY_SECONDS)
            await self.find()
