"""Environment variables that ComfyUI and its custom nodes may see."""

import os
from collections.abc import Mapping

from comfyrelay.configuration import ENV_PREFIX

# Secrets of the worker whose names lack our prefix.
SECRET_NAMES = frozenset({"COMFY_CLOUD_API_KEY", "FLEET_SECRET"})


def child_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Remove our own variables: they hold the fleet secret and the Comfy Cloud key, which custom nodes must not see."""
    return {
        name: value
        for name, value in environment.items()
        # Our settings ignore case.
        if name not in SECRET_NAMES and not name.upper().startswith(ENV_PREFIX)
    }
