"""Managed ComfyUI processes as servers of the worker's pool; each gets jobs once it answers."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from comfyrelay.comfyui.processes import state_files, supervisor
from comfyrelay.comfyui.processes.gpu_processes import GpuProcesses
from comfyrelay.comfyui.processes.options import Care
from comfyrelay.errors import NotFound
from comfyrelay.system.processes import memory_of
from comfyrelay.worker.comfyui.servers import Servers
from comfyrelay.worker.lease import Lease

# A run may notice the exit of its process before or after the supervisor does.
ENDING_SECONDS = 3.0
LOOK_SECONDS = 0.2


class KeptServers:
    """Implements `GpuInventory` for GPU sharing. `folder` is the worker's folder, `held` returns its leases."""

    def __init__(
        self,
        care: Care,
        servers: Servers,
        *,
        folder: Path,
        held: Callable[[], Sequence[Lease]],
        timings: supervisor.Timings | None = None,
    ) -> None:
        self.folder = folder / state_files.FOLDER
        self.is_counted_by_itself = care.per_gpu == "auto"
        self._servers = servers
        self._held = held
        self._keeper = supervisor.Keeper(care, folder=self.folder, on_url=self._on_url, timings=timings)
        # changes of one server run one after the other
        self._changes: dict[str, asyncio.Task[None]] = {}
        # the server at each address, now or earlier
        self._names: dict[str, str] = {}
        # removed servers are not restarted
        self._removing: set[str] = set()
        servers.keep(self)

    async def open(self) -> None:
        await self._keeper.open()

    async def close(self) -> None:
        await self._keeper.close()
        for each in self._changes.values():
            each.cancel()
        await asyncio.gather(*self._changes.values(), return_exceptions=True)

    def folders(self) -> list[Path]:
        """Folders with the `input` and `output` of each process, including stopped ones."""
        return sorted(each for each in self.folder.glob("comfyui-*") if each.is_dir())

    def gpus(self) -> Sequence[GpuProcesses]:
        return self._keeper.gpus()

    def taken(self, gpu_key: str) -> int | None:
        """RAM used by the largest ComfyUI process on a GPU, or `None` while none runs."""
        up = [
            each for each in self._keeper.kept if each.gpu.key == gpu_key and each.state is supervisor.ProcessState.UP
        ]
        return max((sum(map(memory_of, each.family)) for each in up), default=0) or None

    async def add(self, gpu_key: str) -> str:
        try:
            return (await self._keeper.add(gpu_key)).url
        finally:
            for name in [each for each in self._servers.named if self._keeper.find(each) is None]:
                await self._forget(name)

    async def remove(self, gpu_key: str, url: str) -> None:
        """Remove a process, even if its address has changed. Raises `NotFound` if no process had this address."""
        kept = self._keeper.find(self._names.get(url, ""))
        if kept is None or kept.gpu.key != gpu_key:
            raise NotFound(f"There is no ComfyUI at {url} on the GPU {gpu_key}.")
        self._removing.add(kept.name)
        try:
            await self._forget(kept.name, until_unused=partial(self._until_unused, kept.name))
            await self._keeper.remove(kept.name)
        finally:
            self._removing.discard(kept.name)

    async def _forget(self, name: str, *, until_unused: Callable[[], Awaitable[None]] | None = None) -> None:
        if (change := self._changes.pop(name, None)) is not None:
            await asyncio.gather(change, return_exceptions=True)
        await self._servers.remove(name, until_unused=until_unused)
        self._names = {url: each for url, each in self._names.items() if each != name}

    async def _until_unused(self, name: str) -> None:
        """Wait until no lease uses the server: outputs are fetched after their run."""
        while any(each.server == name for each in self._held()):  # noqa: ASYNC110  (leases tell nobody)
            await asyncio.sleep(LOOK_SECONDS)

    def why_away(self, name: str) -> str | None:
        kept = self._keeper.find(name)
        return kept.why_away if kept is not None else None

    def restart(self, name: str, why: str) -> None:
        self._keeper.restart(name, why)

    def _on_url(self, kept: supervisor.KeptProcess) -> None:
        if kept.name in self._removing:
            return
        self._names[kept.url] = kept.name
        endings = _Endings(self._keeper, kept.name)
        before = self._changes.get(kept.name)
        if before is None and self._servers.find(kept.name) is None:
            self._servers.add(kept.name, kept.url, endings=endings, gpu=kept.gpu.key)
            return

        async def change(url: str) -> None:
            if before is not None:
                await asyncio.gather(before, return_exceptions=True)
            await self._servers.remove(kept.name)
            self._servers.add(kept.name, url, endings=endings, gpu=kept.gpu.key)

        self._changes[kept.name] = asyncio.create_task(change(kept.url))


class _Endings:
    def __init__(self, keeping: supervisor.Keeper, name: str) -> None:
        self._keeper = keeping
        self._name = name

    async def since(self, began: float) -> supervisor.Ending | None:
        return await self._keeper.ending_of(self._name, since=began, seconds=ENDING_SECONDS)

    async def run_begins(self) -> None:
        # the run reports what it cannot find
        with suppress(OSError):
            await self._keeper.run_begins(self._name)

    def stuck(self, why: str) -> None:
        self._keeper.restart(self._name, f"A run did not go on. {why}")
