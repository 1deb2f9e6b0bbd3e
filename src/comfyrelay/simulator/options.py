"""How a simulator is set up, and stays set up over its restarts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from comfyrelay.simulator.gpu import SimulatedGpuOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    host: str = "127.0.0.1"
    # 0 takes a free one
    port: int = 0
    # None takes a temporary one, which is removed at the end
    folder: Path | None = None
    # model folder → names of the files in it
    # the second checkpoint cannot be loaded
    models: Mapping[str, Sequence[str]] = field(
        default_factory=lambda: {
            "checkpoints": ["simulator.safetensors", "broken.safetensors"],
            "loras": ["simulator.safetensors"],
        }
    )
    version: str = "0.7.0"
    vram_bytes: int = 24 * 1024**3
    max_upload_bytes: int = 100 * 1024**2
    # how it makes previews, unless a prompt says so: as ComfyUI, it makes none by itself
    preview_method: str = "none"
    # how long each step of a sampler takes
    step_seconds: float = 0.0
    # the GPU that it shares with other processes; None has one to itself, whose memory never runs out
    gpu: SimulatedGpuOptions | None = None
    # more that it claims to have been started with
    arguments: Sequence[str] = ()
    cloud: bool = False
    # what the cloud face wants as X-API-Key
    api_key: str = "simulator-key"
