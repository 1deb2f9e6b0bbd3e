"""Decide which jobs run on the built-in simulator.

The decision is made when a job is added. Simulated jobs have their own stage, where only the simulator works, so none
is mixed up with jobs for ComfyUI.
"""

from pathlib import Path

from comfyrelay.domain.queue.states import Stage
from comfyrelay.protocol.desk import SimulatedJobs

# Next to the queue: marks that this desk has had a ComfyUI, and waits for it from then on.
MARKER = ".comfyui-found"
# Models that the simulator pretends to have, including those of ComfyUI's first templates.
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
    """`is_chosen`:

    simulate all new jobs. By default only the examples are simulated, until a ComfyUI was found or configured once.
    """

    def __init__(self, data_dir: Path, *, stage: Stage, is_chosen: bool, is_named: bool) -> None:
        self._marker = data_dir / MARKER
        self._is_chosen = is_chosen
        self._has_comfyui = is_named or self._marker.exists()
        self.stage = stage
        self.tries_stage = Stage.STAGING if stage is Stage.PRODUCTION else Stage.PRODUCTION
        # ids of the example workflows
        self.examples: frozenset[int] = frozenset()

    @property
    def mode(self) -> SimulatedJobs:
        if self._is_chosen:
            return SimulatedJobs.EVERYTHING
        return SimulatedJobs.NOTHING if self._has_comfyui else SimulatedJobs.EXAMPLES

    def note_comfyui(self) -> None:
        """Record that a ComfyUI exists: from now on jobs wait for it."""
        self._has_comfyui = True
        self._marker.touch()

    def stage_of(self, workflow_id: int) -> Stage:
        mode = self.mode
        is_try = mode is SimulatedJobs.EVERYTHING or (mode is SimulatedJobs.EXAMPLES and workflow_id in self.examples)
        return self.tries_stage if is_try else self.stage
