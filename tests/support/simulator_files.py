"""Recordings of a ComfyUI server."""

from pathlib import Path

from comfyrelay.simulator import nodes

# part of the package: the simulator uses it as its node definitions
OBJECT_INFO_RECORDED = Path(nodes.__path__[0]) / "object_info.json"
