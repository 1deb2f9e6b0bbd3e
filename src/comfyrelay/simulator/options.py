"""Options of a simulator, which do not change on restarts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from comfyrelay.comfyui.versions import CANCEL_BY_ID, TRIED, version_key
from comfyrelay.simulator.gpu import SimulatedGpuOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    host: str = "127.0.0.1"
    # Port 0 picks a free one.
    port: int = 0
    # Every request needs this secret. Without a secret, every user of this machine can use the simulator, as with
    # ComfyUI.
    secret: str | None = field(default=None, repr=False)
    # Without a folder, a temporary folder is used and deleted at the end.
    folder: Path | None = None
    # File names by model folder. The second checkpoint fails to load.
    models: Mapping[str, Sequence[str]] = field(
        default_factory=lambda: {
            "checkpoints": ["simulator.safetensors", "broken.safetensors"],
            "loras": ["simulator.safetensors"],
        }
    )
    # The simulator behaves like this version of ComfyUI.
    version: str = TRIED[-1]
    # Node classes by pack of custom nodes. Each pack has a script for the editor.
    packs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    vram_bytes: int = 24 * 1024**3
    max_upload_bytes: int = 100 * 1024**2
    # A prompt may choose another method. ComfyUI's default is also none.
    preview_method: str = "none"
    # Every sampler step takes this long.
    step_seconds: float = 0.0
    # Other processes may share this GPU. Without a GPU, memory is unlimited.
    gpu: SimulatedGpuOptions | None = None
    # `/system_stats` reports these command-line arguments.
    arguments: Sequence[str] = ()
    # Whether nodes follow links in the folders, as in ComfyUI. Only the owner can create links.
    follows_links: bool = False
    cloud: bool = False
    # The cloud API requires this bearer token.
    api_key: str = "simulator-key"

    @property
    def is_current(self) -> bool:
        """Whether this version behaves like current versions: it cancels by id, checks ids, names missing nodes, and
        lists cached outputs without a client."""
        return (version_key(self.version) or ()) >= CANCEL_BY_ID
