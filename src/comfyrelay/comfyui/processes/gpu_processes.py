"""The GPUs of this machine, and what runs on them: all that deciding how many on one GPU needs to know."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class GpuProcesses:
    key: str
    name: str | None
    memory_bytes: int | None
    # base URLs that are up or starting
    processes: tuple[str, ...]


class GpuInventory(Protocol):
    def gpus(self) -> Sequence[GpuProcesses]: ...

    async def add(self, gpu_key: str) -> str:
        """Start one more on this GPU and return its base URL once it answers; `ComfyRelayError` with the reason when
        it does not."""
        ...

    async def remove(self, gpu_key: str, url: str) -> None:
        """Let what runs there finish, then stop it, wherever it is by then; `NotFound` where there is none."""
        ...
