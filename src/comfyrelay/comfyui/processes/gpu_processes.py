"""GPUs and their ComfyUI processes, as the packing algorithm sees them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class GpuProcesses:
    key: str
    name: str | None
    memory_bytes: int | None
    # Base URLs of running or starting processes.
    processes: tuple[str, ...]


class GpuInventory(Protocol):
    def gpus(self) -> Sequence[GpuProcesses]: ...

    async def add(self, gpu_key: str) -> str:
        """Start another process on this GPU and return its base URL once it responds; raise `ComfyRelayError` if it
        does not."""
        ...

    async def remove(self, gpu_key: str, url: str) -> None:
        """Let the process finish its runs, then stop it, even if its address has changed by then.

        Raises `NotFound` if it does not exist.
        """
        ...
