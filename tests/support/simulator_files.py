"""Recordings of a ComfyUI server."""

from pathlib import Path

from comfyrelay.simulator import nodes

# this file is part of the package: the simulator uses it as its node definitions
OBJECT_INFO_RECORDED = Path(nodes.__path__[0]) / "object_info.json"
