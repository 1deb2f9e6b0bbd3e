"""Options of a simulator; they survive its restarts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from comfyrelay.simulator.gpu import SimulatedGpuOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    host: str = "127.0.0.1"
    # 0: any free port
    port: int = 0
    # None: a temporary folder, deleted at the end
    folder: Path | None = None
    # model folder → file names; the second checkpoint fails to load
    models: Mapping[str, Sequence[str]] = field(
        default_factory=lambda: {
            "checkpoints": ["simulator.safetensors", "broken.safetensors"],
            "loras": ["simulator.safetensors"],
        }
    )
    version: str = "0.7.0"
    vram_bytes: int = 24 * 1024**3
    max_upload_bytes: int = 100 * 1024**2
    # preview method unless a prompt sets one; like ComfyUI, none by default
    preview_method: str = "none"
    # duration of a sampler step
    step_seconds: float = 0.0
    # GPU shared with other processes; None: its own, with unlimited memory
    gpu: SimulatedGpuOptions | None = None
    # further command-line arguments to report
    arguments: Sequence[str] = ()
    cloud: bool = False
    # required X-API-Key of the cloud API
    api_key: str = "simulator-key"
