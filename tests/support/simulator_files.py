"""Where the recordings of a real ComfyUI are."""

from pathlib import Path

from comfyrelay.simulator import nodes

# the simulator describes its nodes with it, so it comes with the package
OBJECT_INFO_RECORDED = Path(nodes.__path__[0]) / "object_info.json"
