"""Managed ComfyUI processes as servers of the worker's pool; each gets jobs once it responds."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from comfyrelay.comfyui.processes import state_files
from comfyrelay.comfyui.processes.gpus import GpuProcesses
from comfyrelay.comfyui.processes.options import ManagedOptions
from comfyrelay.comfyui.processes.supervisor import ManagedProcess, ProcessExit, ProcessState, Supervisor, Timings
from comfyrelay.errors import NotFound
from comfyrelay.system.processes import memory_of
from comfyrelay.worker.comfyui.servers import Servers
from comfyrelay.worker.lease import Lease

# A run may notice the exit of its process before or after the supervisor does.
EXIT_SECONDS = 3.0
POLL_SECONDS = 0.2


class ManagedServers:
    """Implements `GpuInventory` for GPU sharing. `folder` is the worker's folder, `held` returns its leases."""

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
        self._supervisor = Supervisor(options, folder=self.folder, on_url=self._on_url, timings=timings)
        # changes of one server run one after the other
        self._changes: dict[str, asyncio.Task[None]] = {}
        # the server at each address, now or earlier
        self._names: dict[str, str] = {}
        # removed servers are not restarted
        self._removing: set[str] = set()
        servers.set_managed(self)

    async def open(self) -> None:
        await self._supervisor.open()

    async def close(self) -> None:
        await self._supervisor.close()
        for task in self._changes.values():
            task.cancel()
        await asyncio.gather(*self._changes.values(), return_exceptions=True)

    def folders(self) -> list[Path]:
        """Folders with the `input` and `output` of each process, including stopped ones."""
        return sorted(each for each in self.folder.glob("comfyui-*") if each.is_dir())

    def gpus(self) -> Sequence[GpuProcesses]:
        return self._supervisor.gpus()

    def largest_process_bytes(self, gpu_key: str) -> int | None:
        """RAM used by the largest ComfyUI process on a GPU, or `None` while none runs."""
        up = [
            process
            for process in self._supervisor.processes
            if process.gpu.key == gpu_key and process.state is ProcessState.UP
        ]
        return max((sum(map(memory_of, each.process_tree)) for each in up), default=0) or None

    async def add(self, gpu_key: str) -> str:
        try:
            return (await self._supervisor.add(gpu_key)).url
        finally:
            for name in [each for each in self._servers.named if self._supervisor.find(each) is None]:
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
        self._names = {url: each for url, each in self._names.items() if each != name}

    async def _until_unused(self, name: str) -> None:
        """Wait until no lease uses the server: outputs are fetched after their run."""
        while any(each.server == name for each in self._held()):  # noqa: ASYNC110  (leases send no events)
            await asyncio.sleep(POLL_SECONDS)

    def unavailable_reason(self, name: str) -> str | None:
        managed = self._supervisor.find(name)
        return managed.unavailable_reason if managed is not None else None

    def restart(self, name: str, why: str) -> None:
        self._supervisor.restart(name, why)

    def _on_url(self, managed: ManagedProcess) -> None:
        if managed.name in self._removing:
            return
        self._names[managed.url] = managed.name
        exits = _ProcessExits(self._supervisor, managed.name)
        before = self._changes.get(managed.name)
        if before is None and self._servers.find(managed.name) is None:
            self._servers.add(managed.name, managed.url, exits=exits, gpu=managed.gpu.key)
            return

        async def change(url: str) -> None:
            if before is not None:
                await asyncio.gather(before, return_exceptions=True)
            await self._servers.remove(managed.name)
            self._servers.add(managed.name, url, exits=exits, gpu=managed.gpu.key)

        self._changes[managed.name] = asyncio.create_task(change(managed.url))


class _ProcessExits:
    def __init__(self, supervisor: Supervisor, name: str) -> None:
        self._supervisor = supervisor
        self._name = name

    async def exit_since(self, began: float) -> ProcessExit | None:
        return await self._supervisor.wait_for_exit(self._name, since=began, seconds=EXIT_SECONDS)

    async def mark_run_started(self) -> None:
        # the run reports what it cannot find
        with suppress(OSError):
            await self._supervisor.mark_run_started(self._name)

    def restart_stuck(self, why: str) -> None:
        self._supervisor.restart(self._name, f"A run is stuck. {why}")
