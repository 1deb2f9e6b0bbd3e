"""How a stand-in is set up, and stays set up over its restarts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


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
            "checkpoints": ["stand-in.safetensors", "broken.safetensors"],
            "loras": ["stand-in.safetensors"],
        }
    )
    version: str = "0.7.0"
    vram_bytes: int = 24 * 1024**3
    max_upload_bytes: int = 100 * 1024**2
    cloud: bool = False
    # what the cloud face wants as X-API-Key
    api_key: str = "stand-in-key"
