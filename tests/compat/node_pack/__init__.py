"""Custom nodes for the compatibility suite: slow, failing, and with outputs that core nodes make only from models."""

# ruff: noqa: N802

import time
from typing import Any

import comfy.utils  # type: ignore[import-not-found]
import torch  # type: ignore[import-not-found,unused-ignore]
from comfyui_version import __version__  # type: ignore[import-not-found]
from PIL import Image

try:
    from comfy_api.latest import Types  # type: ignore[import-not-found]

    VOXEL: Any = Types.VOXEL
except (ImportError, AttributeError):
    from comfy_extras.nodes_hunyuan3d import VOXEL  # type: ignore[import-not-found, no-redef]


class SlowImage:
    """Takes steps of equal length, with progress and a preview each."""

    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "run"
    CATEGORY = "compat"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        steps = ("INT", {"default": 4, "min": 1, "max": 10_000})
        return {"required": {"steps": steps, "seconds": ("FLOAT", {"default": 0.05}), "seed": ("INT", {"default": 0})}}

    def run(self, steps: int, seconds: float, seed: int) -> tuple[Any]:
        bar = comfy.utils.ProgressBar(steps)
        for step in range(steps):
            comfy.model_management.throw_exception_if_processing_interrupted()
            time.sleep(seconds)
            preview = Image.new("RGB", (32, 32), (step * 20 % 256, seed % 256, 128))
            bar.update_absolute(step + 1, steps, ("JPEG", preview, 32))
        return (torch.full((1, 64, 64, 3), (seed % 256) / 255),)


class FailingImage:
    """Raises the named error."""

    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "run"
    CATEGORY = "compat"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"error": (["exception", "out of memory"],), "seed": ("INT", {"default": 0})}}

    def run(self, error: str, seed: int) -> tuple[Any]:
        if error == "out of memory":
            raise torch.OutOfMemoryError("Allocation on device")
        raise ValueError(f"the lens is dirty ({seed})")


class Cube:
    """A cube of voxels, for the core nodes that make and save a mesh."""

    RETURN_TYPES = ("VOXEL",)
    FUNCTION = "run"
    CATEGORY = "compat"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"side": ("INT", {"default": 4})}}

    def run(self, side: int) -> tuple[Any]:
        cube = torch.zeros((1, side + 4, side + 4, side + 4))
        cube[:, 2:-2, 2:-2, 2:-2] = 1.0
        return (VOXEL(cube),)


NODE_CLASS_MAPPINGS = {"CompatSlowImage": SlowImage, "CompatFailingImage": FailingImage, "CompatCube": Cube}
if int(__version__.split(".")[1]) < 28:
    # A node that newer versions no longer have.
    NODE_CLASS_MAPPINGS["CompatOldImage"] = SlowImage
else:
    from comfy_api.latest import io
    from server import PromptServer  # type: ignore[import-not-found]

    PromptServer.instance.node_replace_manager.register(
        io.NodeReplace(
            new_node_id="CompatSlowImage",
            old_node_id="CompatRenamedImage",
            old_widget_ids=["count", "number"],
            input_mapping=[
                {"new_id": "seed", "old_id": "number"},
                {"new_id": "steps", "old_id": "count"},
                {"new_id": "seconds", "set_value": 0.01},
            ],
        )
    )
