"""Which jobs run on the built-in simulator: those that were added to try things out, and never one meant for ComfyUI.

A job keeps the choice that held when it was added: tries run at a stage of their own, where only the simulator works.
"""

from pathlib import Path

from comfyrelay.domain.queue.states import Stage
from comfyrelay.protocol.desk import TryingOut

# Beside the queue: this desk has had a ComfyUI once, and waits for it whenever it is away.
MARKER = ".comfyui-found"
# What the simulator claims to have: beside models of its own, those that ComfyUI's first templates name.
TRIED_MODELS = {
    "checkpoints": [
        "simulator.safetensors",
        "broken.safetensors",
        "v1-5-pruned-emaonly-fp16.safetensors",
        "v1-5-pruned-emaonly.safetensors",
        "v1-5-pruned-emaonly.ckpt",
        "512-inpainting-ema.safetensors",
        "sd_xl_base_1.0.safetensors",
        "sd_xl_refiner_1.0.safetensors",
    ],
    "loras": ["simulator.safetensors"],
}


class Trying:
    """`is_chosen`: everything that is added is a try. Without a word only the examples are, and only until a ComfyUI
    was found or named once."""

    def __init__(self, data_dir: Path, *, stage: Stage, is_chosen: bool, is_named: bool) -> None:
        self._marker = data_dir / MARKER
        self._is_chosen = is_chosen
        self._has_comfyui = is_named or self._marker.exists()
        self.stage = stage
        self.tries_stage = Stage.STAGING if stage is Stage.PRODUCTION else Stage.PRODUCTION
        # the ids of the workflows that a desk begins with
        self.examples: frozenset[int] = frozenset()

    @property
    def mode(self) -> TryingOut:
        if self._is_chosen:
            return TryingOut.EVERYTHING
        return TryingOut.NOTHING if self._has_comfyui else TryingOut.EXAMPLES

    def note_comfyui(self) -> None:
        """A ComfyUI is there: from now on it is waited for when it is away."""
        self._has_comfyui = True
        self._marker.touch()

    def stage_of(self, workflow_id: int) -> Stage:
        mode = self.mode
        is_try = mode is TryingOut.EVERYTHING or (mode is TryingOut.EXAMPLES and workflow_id in self.examples)
        return self.tries_stage if is_try else self.stage
