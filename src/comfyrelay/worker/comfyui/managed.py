"""Managed ComfyUI processes as servers of the worker's pool. A process gets jobs once it responds."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from comfyrelay.comfyui.processes import state_files
from comfyrelay.comfyui.processes.gpus import GpuProcesses
from comfyrelay.comfyui.processes.options import ManagedOptions
from comfyrelay.comfyui.processes.supervisor import ManagedProcess, ProcessState, Supervisor, Timings
from comfyrelay.errors import NotFound
from comfyrelay.system.processes import memory_of
from comfyrelay.worker.comfyui import packing_results
from comfyrelay.worker.comfyui.packing_results import PackingResults
from comfyrelay.worker.comfyui.recovery import SupervisedProcess
from comfyrelay.worker.comfyui.servers import Servers
from comfyrelay.worker.lease import Lease

POLL_SECONDS = 0.2


class ManagedServers:
    """Implements `GpuInventory` for GPU sharing. `folder` is the worker's folder; `held` returns the worker's
    leases."""

    def __init__(
        self,
        options: ManagedOptions,
        servers: Servers,
        *,
        folder: Path,
        held: Callable[[], Sequence[Lease]],
        timings: Timings | None = None,
    ) -> None:
        self.folder = folder / state_files.FOLDER
        self.is_automatic = options.per_gpu == "auto"
        self._servers = servers
        self._held = held
        self._supervisor = Supervisor(
            options, folder=self.folder, on_url=self._on_url, on_up=self._on_up, timings=timings
        )
        self.results = PackingResults(folder / packing_results.FILE, comfyui=self._supervisor.version)
        # Changes to one server are made one after the other.
        self._changes: dict[str, asyncio.Task[None]] = {}
        # Server names by current and earlier address.
        self._names: dict[str, str] = {}
        # Servers that are being removed, which must not be added again.
        self._removing: set[str] = set()
        servers.supervisor = self._supervisor

    async def open(self) -> None:
        await self._supervisor.open()

    async def close(self) -> None:
        await self._supervisor.close()
        for task in self._changes.values():
            task.cancel()
        await asyncio.gather(*self._changes.values(), return_exceptions=True)

    def folders(self) -> list[Path]:
        """Return the folders with the `input` and `output` of each process, including stopped ones."""
        return sorted(folder for folder in self.folder.glob("comfyui-*") if folder.is_dir())

    def gpus(self) -> Sequence[GpuProcesses]:
        return self._supervisor.gpus()

    def largest_process_bytes(self, gpu_key: str) -> int | None:
        """Return the RAM of the largest ComfyUI process on a GPU, or `None` while none runs."""
        sizes = (
            sum(map(memory_of, process.process_tree))
            for process in self._supervisor.processes
            if process.gpu.key == gpu_key and process.state is ProcessState.UP
        )
        return max(sizes, default=0) or None

    async def add(self, gpu_key: str) -> str:
        try:
            return (await self._supervisor.add(gpu_key)).url
        finally:
            for name in list(self._servers.own):
                if self._supervisor.find(name) is None:
                    await self._remove_server(name)

    async def remove(self, gpu_key: str, url: str) -> None:
        """Remove a process, even if its address has changed. Raises `NotFound` if no process had this address."""
        managed = self._supervisor.find(self._names.get(url, ""))
        if managed is None or managed.gpu.key != gpu_key:
            raise NotFound(f"No ComfyUI runs at {url} on GPU {gpu_key}.")
        self._removing.add(managed.name)
        try:
            await self._remove_server(managed.name, until_unused=partial(self._until_unused, managed.name))
            await self._supervisor.remove(managed.name)
        finally:
            self._removing.discard(managed.name)

    async def _remove_server(self, name: str, *, until_unused: Callable[[], Awaitable[None]] | None = None) -> None:
        if (change := self._changes.pop(name, None)) is not None:
            await asyncio.gather(change, return_exceptions=True)
        await self._servers.remove(name, until_unused=until_unused)
        self._names = {url: server for url, server in self._names.items() if server != name}

    async def _until_unused(self, name: str) -> None:
        """Wait until no lease uses the server. Outputs are fetched after the run."""
        while any(lease.server == name for lease in self._held()):  # noqa: ASYNC110  (leases send no events)
            await asyncio.sleep(POLL_SECONDS)

    def _on_up(self, managed: ManagedProcess) -> None:
        if managed.name in self._servers.own and managed.name not in self._removing:
            # The address has changed, so the pool may be replacing the server. The pool itself checks a new server.
            with suppress(NotFound):
                self._servers.pool.check_server(managed.name)

    def _on_url(self, managed: ManagedProcess) -> None:
        if managed.name in self._removing:
            return
        self._names[managed.url] = managed.name
        process = SupervisedProcess(self._supervisor, managed.name)
        add = partial(self._servers.add, managed.name, gpu=managed.gpu.key, process=process)
        before = self._changes.get(managed.name)
        if before is None and managed.name not in self._servers.own:
            add(managed.url)
            return

        async def change(url: str) -> None:
            if before is not None:
                await asyncio.gather(before, return_exceptions=True)
            await self._servers.remove(managed.name)
            add(url)

        self._changes[managed.name] = asyncio.create_task(change(managed.url))
