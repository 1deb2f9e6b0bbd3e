"""The context and the result of a node function."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from comfyrelay.simulator.folders import Folders

# A real server allocates three 32-bit floats per pixel.
_BYTES_PER_PIXEL = 12
LARGEST_BATCH_BYTES = 2 * 1024**3


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeContext:
    folders: Folders
    prompt: Mapping[str, Any]
    extra_pnginfo: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeResult:
    outputs: tuple[Any, ...] = ()
    # The message for the client, such as {"images": [...]}.
    ui: Mapping[str, Any] | None = None
    # PNGs that are sent only over the WebSocket.
    websocket_images: tuple[bytes, ...] = ()


NodeFunction = Callable[..., NodeResult]


def check_memory(width: int, height: int, count: int) -> None:
    """Refuse a batch that a real server could not allocate, before Pillow tries to allocate it."""
    size = width * height * count * _BYTES_PER_PIXEL
    if size > LARGEST_BATCH_BYTES:
        raise RuntimeError(
            "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: "
            f"you tried to allocate {size} bytes. Error code 12 (Cannot allocate memory)"
        )
