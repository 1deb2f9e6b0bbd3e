"""What a ComfyUI, and so its custom nodes, get to see of our environment."""

import os
from collections.abc import Mapping

from comfyrelay.settings import ENV_PREFIX

# plain names of secrets that workers know
SECRET_NAMES = frozenset({"COMFY_CLOUD_API_KEY", "FLEET_SECRET"})


def without_ours(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Without our own, which hold the fleet's secret and the key of Comfy Cloud: ComfyUI would hand them to its custom
    nodes."""
    return {
        name: value
        for name, value in environment.items()
        # ours are read in any case
        if name not in SECRET_NAMES and not name.upper().startswith(ENV_PREFIX)
    }
