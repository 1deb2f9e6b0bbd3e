"""Decide which jobs run on the built-in simulator.

The decision is made when a job is added. Simulated jobs have their own stage with the simulator as the only worker, so
they never run on ComfyUI.
"""

from comfyrelay.desk.settings import DeskSettings
from comfyrelay.domain.queue.states import Stage
from comfyrelay.protocol.desk import SimulatedJobs
from comfyrelay.settings import Settings

# This file marks that the desk has had a ComfyUI. From then on, jobs wait for it.
MARKER = ".comfyui-found"
# Models that the simulator pretends to have, including the models of ComfyUI's first templates.
SIMULATED_MODELS = {
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


class SimulationPolicy:
    """Decides whether a new job is simulated.

    With `--simulator`, every new job is simulated. Otherwise, only the examples are simulated, until a ComfyUI has been
    found or configured.
    """

    def __init__(self, settings: Settings, desk: DeskSettings) -> None:
        self._marker = settings.data_dir / MARKER
        self._simulates_all = desk.simulator
        is_configured = bool({"comfyui_url", "comfyui_dir"} & desk.model_fields_set)
        self.has_comfyui = is_configured or self._marker.exists()
        self.stage = Stage(settings.stage)
        self.simulated_stage = Stage.STAGING if self.stage is Stage.PRODUCTION else Stage.PRODUCTION
        # The ids of the example workflows.
        self.examples: frozenset[int] = frozenset()

    @property
    def mode(self) -> SimulatedJobs:
        if self._simulates_all:
            return SimulatedJobs.EVERYTHING
        return SimulatedJobs.NOTHING if self.has_comfyui else SimulatedJobs.EXAMPLES

    def note_comfyui(self) -> None:
        """Record that a ComfyUI exists. From now on, jobs wait for ComfyUI."""
        self.has_comfyui = True
        self._marker.touch()

    def stage_of(self, workflow_id: int) -> Stage:
        is_example = self.mode is SimulatedJobs.EXAMPLES and workflow_id in self.examples
        return self.simulated_stage if is_example or self.mode is SimulatedJobs.EVERYTHING else self.stage
